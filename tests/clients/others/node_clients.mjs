// The packages for Node: node node_clients.mjs URL KEY MODEL
import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [url, apiKey, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "Name three colours." }];
const limits = { model, temperature: 0, max_tokens: 24 };

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
// From then on the prompt is cached, and answers are the same to the bit.
await openai.chat.completions.create({ messages, ...limits });
const whole = await openai.chat.completions.create({ messages, ...limits });
const text = whole.choices[0].message.content;
assert(text);
let streamed = "";
for await (const chunk of await openai.chat.completions.create({ messages, ...limits, stream: true })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
}
assert.equal(streamed, text);

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const forced = { messages, ...limits, max_tokens: 100, tools, tool_choice: "required", parallel_tool_calls: false };
const called = await openai.chat.completions.create(forced);
assert.equal(called.choices[0].finish_reason, "tool_calls");
const [call] = called.choices[0].message.tool_calls;
assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["city"]);
const final = await openai.chat.completions.stream(forced).finalChatCompletion();
assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);

const input = "Name three colours.";
const response = await openai.responses.create({ model, input, temperature: 0, max_output_tokens: 24 });
assert.equal(response.output_text, text);
await assert.rejects(openai.chat.completions.create({ messages, model: "gpt-4" }), OpenAI.NotFoundError);

const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const message = await anthropic.messages.create({ messages, ...limits });
assert.equal(message.content[0].text, text);
const stream = anthropic.messages.stream({ messages, ...limits });
assert.equal((await stream.finalMessage()).content[0].text, text);
await assert.rejects(anthropic.messages.create({ messages, ...limits, model: "claude" }), Anthropic.NotFoundError);
