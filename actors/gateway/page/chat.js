// The conversation.

import { Answer } from "./answer.js";
import { ask, events } from "./api.js";
import { byId, element } from "./elements.js";
import { chatBody, pointOut, showWhatIsSet } from "./parameters.js";

const prompt = byId("prompt");
let messages = []; // what the model sees: only turns that were answered
let running = null; // the AbortController of the answer that comes

/** Connects the form. `onRefused` is called with each error of the server. */
export function startChat(onRefused) {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === null && prompt.value.trim() !== "") converse(prompt.value, onRefused);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", clear);
  byId("parameters").addEventListener("input", showWhatIsSet);
  showWhatIsSet(); // browsers fill in again what was there before a reload
  prompt.focus();
}

function clear() {
  running?.abort();
  messages = [];
  byId("log").replaceChildren();
  prompt.focus();
}

async function converse(text, onRefused) {
  const history = messages;
  const asked = [...history, { role: "user", content: text }];
  const control = new AbortController();
  begin(control, text);
  const answer = new Answer(byId("log"));
  let problem = null;
  try {
    const options = { body: chatBody(asked), signal: control.signal };
    const response = await ask("v1/chat/completions", options);
    for await (const event of events(response)) answer.add(event);
  } catch (error) {
    if (!control.signal.aborted) problem = error;
  }
  answer.end({ stopped: control.signal.aborted, problem: problem?.message });
  finish();
  if (messages !== history) return; // it was cleared meanwhile
  if (answer.text !== "") messages = [...asked, { role: "assistant", content: answer.text }];
  else if (prompt.value === "") prompt.value = text; // to be changed, or sent again
  if (problem !== null) {
    pointOut(problem.param);
    onRefused(problem);
  }
}

function begin(control, text) {
  running = control;
  pointOut(null);
  byId("welcome")?.remove();
  const question = element("article", "message user");
  question.append(element("div", "text", text));
  byId("log").append(question);
  prompt.value = "";
  showRunning(true);
}

function finish() {
  running = null;
  showRunning(false);
  prompt.focus();
}

function showRunning(isRunning) {
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
}
