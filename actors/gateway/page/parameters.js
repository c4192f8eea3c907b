// The fields of the form of parameters, as a request has them.

import { byId } from "./elements.js";

const WORDS = new Set(["system", "stop", "reasoning_effort"]);

const fields = () => byId("parameters").querySelectorAll("[name]");

/** What was filled in, by name: numbers, and texts for the system prompt, the stop texts and the reasoning. */
function filledIn() {
  const filled = [...fields()].filter((field) => field.value.trim() !== "");
  return Object.fromEntries(
    filled.map(({ name, value }) => [name, WORDS.has(name) ? value : Number(value)]),
  );
}

/** The body of a chat request. */
export function chatBody(messages) {
  const { system, stop, ...rest } = filledIn();
  const begin = system === undefined ? [] : [{ role: "system", content: system }];
  if (stop !== undefined) rest.stop = stop.split("\n").filter((text) => text !== "");
  return {
    messages: [...begin, ...messages],
    stream: true,
    stream_options: { include_usage: true },
    ...rest,
  };
}

/** Shows the field that an error names, if it is one of these. */
export function pointOut(param) {
  for (const field of fields()) field.setAttribute("aria-invalid", field.name === param);
  if ([...fields()].some((field) => field.name === param)) byId("parameters").open = true;
}

/** Says beside the closed form what is set in it. */
export function showWhatIsSet() {
  const names = Object.keys(filledIn()).map((name) => name.replaceAll("_", " "));
  byId("parameters-set").textContent = names.length ? `set: ${names.join(", ")}` : "";
}
