// One answer in the conversation while it comes.

import { element } from "./elements.js";
import { number } from "./format.js";

const ENDINGS = {
  length: "cut off: no room for more tokens",
  timeout: "cut off: out of time",
  abort: "aborted",
};

export class Answer {
  constructor(log) {
    this.text = "";
    this.element = element("article", "message assistant");
    this.element.setAttribute("aria-busy", "true");
    this.#log = log;
    log.append(this.element);
    this.#follow(true);
  }

  #log;
  #content = null; // text nodes, made when there is something to say
  #reasoning = null;
  #finish = null;
  #usage = null;
  #sentAt = performance.now();
  #firstAt = null;
  #lastAt = null;

  /** Takes one event of the stream. */
  add(event) {
    const [choice] = event.choices;
    if (event.usage) this.#usage = event.usage;
    if (!choice) return;
    const follows = this.#isAtEnd();
    if (choice.finish_reason) this.#finish = choice.finish_reason;
    const { reasoning, content } = choice.delta;
    if (reasoning || content) {
      this.#lastAt = performance.now();
      this.#firstAt ??= this.#lastAt;
    }
    if (reasoning) this.#addReasoning(reasoning);
    if (content) this.#addContent(content);
    this.#follow(follows);
  }

  /** It is whole, or was stopped, or failed: `problem` says why. */
  end({ stopped = false, problem = null } = {}) {
    const follows = this.#isAtEnd();
    this.element.setAttribute("aria-busy", "false");
    if (problem !== null) {
      const error = element("p", "error", problem);
      error.setAttribute("role", "alert");
      this.element.append(error);
    }
    const facts = this.#facts(stopped);
    if (facts.length) this.element.append(element("p", "facts", facts.join(" · ")));
    this.#follow(follows);
  }

  #addReasoning(text) {
    if (this.#reasoning === null) {
      const details = element("details", "reasoning");
      details.open = true;
      const body = element("div", "text");
      details.append(element("summary", "", "Reasoning"), body);
      this.element.prepend(details);
      this.#reasoning = body.appendChild(document.createTextNode(""));
    }
    this.#reasoning.appendData(text);
  }

  #addContent(text) {
    if (this.#content === null) {
      this.#content = document.createTextNode("");
      const body = element("div", "text content");
      body.append(this.#content);
      this.element.append(body);
    }
    this.text += text;
    this.#content.appendData(text);
  }

  #facts(stopped) {
    const facts = stopped ? ["stopped"] : [];
    if (ENDINGS[this.#finish]) facts.push(ENDINGS[this.#finish]);
    if (this.#firstAt !== null) {
      facts.push(`first token after ${number(this.#firstAt - this.#sentAt)} ms`);
    }
    if (this.#usage) {
      const { prompt_tokens, completion_tokens, prompt_tokens_details } = this.#usage;
      const seconds = (this.#lastAt - this.#firstAt) / 1000;
      facts.push(`${completion_tokens} tokens`);
      if (seconds > 0) facts.push(`${number((completion_tokens - 1) / seconds)} tokens/s`);
      const cached = prompt_tokens_details?.cached_tokens ?? 0;
      facts.push(`prompt ${prompt_tokens} tokens, ${cached} of them cached`);
    }
    return facts;
  }

  #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#log;
    return scrollHeight - scrollTop - clientHeight < 40;
  }

  #follow(follows) {
    if (follows) this.#log.scrollTop = this.#log.scrollHeight;
  }
}
