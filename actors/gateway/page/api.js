// Requests to the server that this page came from, with the API key if there is one.

const KEY = "pillion-api-key"; // of the session storage: it is gone with the tab

export const setKey = (key) => sessionStorage.setItem(KEY, key);

/** What the server refused, or why it could not be asked. `param` names the field to change. */
export class ApiError extends Error {
  constructor(message, { status = 0, param = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** The response to a request that went well; throws ApiError for any other, and AbortError if it was stopped. */
export async function ask(path, { body, signal } = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const options = { headers, signal, cache: "no-store" };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw unreached(error);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The JSON object of each server-sent event up to [DONE]. Throws ApiError where the stream tells of one. */
export async function* events(response) {
  for await (const line of lines(response.body)) {
    if (!line.startsWith("data: ")) continue;
    const data = line.slice("data: ".length);
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, event.error);
    yield event;
  }
  throw new ApiError("The connection ended in the middle of the answer.");
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      throw unreached(error);
    }
    if (read.done) return;
    const found = (rest + read.value).split("\n");
    rest = found.pop();
    yield* found;
  }
}

function unreached(error) {
  if (error.name === "AbortError") return error;
  if (error.name === "TimeoutError") return new ApiError("The server does not answer.");
  return new ApiError("The server cannot be reached.");
}

async function refusal(response) {
  const told = await response.json().catch(() => ({}));
  const message = told.error?.message ?? `The server answers with status ${response.status}.`;
  return new ApiError(message, { status: response.status, param: told.error?.param });
}
