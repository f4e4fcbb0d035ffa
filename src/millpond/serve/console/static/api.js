// Requests to the server's own routes. The token stays in this tab's storage, and is sent in a header only.
const TOKEN = "millpond.token";

/** What the server refused: its condition, its message and what to do. */
export class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.condition = error.condition;
    this.hint = error.hint;
    this.context = error.context ?? {};
  }
}

/** The server can't be reached, or broke its answer off. */
export class Unreachable extends Error {}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** A name as a segment of a path. */
export const segment = (name) => encodeURIComponent(name.toWellFormed?.() ?? name);

/** The answer to a request: `question` is sent as JSON. Throws Refused, Unreachable, AbortError. */
export async function request(path, { question, accept = "application/json", signal, headers = {} } = {}) {
  const given = { accept, ...headers };
  if (token.get() !== null) given.authorization = `Bearer ${token.get()}`;
  const options = { headers: given, signal, cache: "no-store", credentials: "omit", redirect: "error" };
  if (question !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(question) });
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (wrong) {
    throw wrong.name === "AbortError" ? wrong : new Unreachable("The server can't be reached.");
  }
  if (answer.ok) return answer;
  let error;
  try {
    ({ error } = await answer.json());
  } catch {
    error = { condition: `HTTP_${answer.status}`, message: "The answer isn't Millpond's.", hint: "Look at the proxy before the server." };
  }
  throw new Refused(answer.status, error);
}

/** The JSON of an answer. Throws as `request`. */
export async function ask(path, options) {
  const answer = await request(path, options);
  return whole(() => answer.json());
}

async function whole(read) {
  try {
    return await read();
  } catch (wrong) {
    throw wrong.name === "AbortError" ? wrong : new Unreachable("The server broke its answer off.");
  }
}

const FORMS = {
  csv: ["text/csv", "csv"],
  ndjson: ["application/x-ndjson", "ndjson"],
  arrow: ["application/vnd.apache.arrow.stream", "arrows"],
};

/** Save an answer as a file; returns its size in bytes. Throws as `request`. */
export async function save(path, question, form, name) {
  const [accept, ending] = FORMS[form];
  const answer = await request(path, { question, accept });
  const content = await whole(() => answer.blob());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = `${name.replace(/[^\p{L}\p{N}._-]+/gu, "_")}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  return content.size;
}

/** The events of a stream: {event, id, data}. Throws as `request`; ends if the server ends it. */
export async function* events(path, { since, signal }) {
  const headers = since ? { "last-event-id": since } : {};
  const answer = await request(path, { accept: "text/event-stream", signal, headers });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await whole(() => reader.read());
    if (done) return;
    text += value.replaceAll("\r", "");
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const found = { event: "message", id: "", data: "" };
      for (const line of part.split("\n")) {
        const [, name, rest] = line.match(/^(\w+): ?(.*)$/su) ?? [];
        if (name === "data") found.data += (found.data && "\n") + rest;
        else if (name) found[name] = rest;
      }
      if (found.data) yield { ...found, data: JSON.parse(found.data) };
    }
  }
}
