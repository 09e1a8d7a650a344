// Requests to the service. Its errors are problems (RFC 9457), and the page shows their texts unchanged.

import { askForToken, currentToken } from "./token.js";

/** An error response of the service, or a service that cannot be reached. */
export class ServiceError extends Error {
  constructor(status, title, detail) {
    super(detail);
    this.status = status;
    this.title = title;
  }
}

/** Return the JSON of a response; a parameter may be a list. */
export async function ask(path, parameters = {}, signal = null) {
  return (await request(`${path}${queryOf(parameters)}`, { signal })).json();
}

/** Return the query of parameters with its question mark; a parameter may be a list. */
export function queryOf(parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters))
    for (const one of [value].flat()) if (one !== null && one !== undefined) query.append(name, one);
  return query.size ? `?${query}` : "";
}

/** Return a response as text. */
export async function askText(path, signal = null) {
  return (await request(path, { signal })).text();
}

/** Yield the server-sent events of a path as `{ name, data }`, with the data read from JSON, until the service ends them. */
export async function* events(path, signal) {
  const answer = await request(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
        if (fields.event) yield { name: fields.event, data: JSON.parse(fields.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Send content as JSON, and return the JSON of the response; `options` are those of `request`. */
export async function send(method, path, content, options = {}) {
  const body = content === undefined ? undefined : JSON.stringify(content);
  return sendBody(method, path, body, "application/json", options);
}

/** Send a text or a file of a media type, and return the JSON of the response; `options` are those of `request`. */
export async function sendBody(method, path, body, type, options = {}) {
  const headers = body === undefined ? {} : { "Content-Type": type };
  return (await request(path, { method, body, headers, ...options })).json();
}

/** Return all items of a paged list. */
export async function askAll(path, parameters = {}, signal = null) {
  const items = [];
  let cursor = null;
  do {
    const page = await ask(path, { ...parameters, cursor }, signal);
    items.push(...page.items);
    cursor = page.next;
  } while (cursor);
  return items;
}

/** Return the path of a run, or of a resource below it. */
export function ofRun(runId, ...parts) {
  return ["/v1/runs", runId, ...parts].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");
}

let registry = null;

/** Return all analyses in the order of the page; the request is sent once. */
export function readAnalyses() {
  registry ??= ask("/v1/analyses").then(
    ({ items }) => items,
    (error) => {
      registry = null;
      throw error;
    },
  );
  return registry;
}

/**
 * Return a successful response; asks the user for a bearer token if the service needs one, unless `asksForToken` is
 * false. The other options are those of `fetch`.
 */
export async function request(path, { asksForToken = true, ...options }) {
  for (;;) {
    const token = currentToken();
    const headers = token ? { ...options.headers, Authorization: `Bearer ${token}` } : options.headers;
    const answer = await reach(path, { ...options, headers });
    if (answer.ok) return answer;
    const error = await problemOf(answer);
    // Several calls may be refused at once: they wait for one dialog, and then all try again.
    // The dialog shows a reason only for a refused token, since its title already says that a token is missing.
    if (answer.status !== 401 || !asksForToken || !(await askForToken(token ? error.message : "", token))) throw error;
    options.signal?.throwIfAborted();
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, "No response", "The service cannot be reached. Check that it runs, and try again.");
  }
}

async function problemOf(answer) {
  try {
    const { title, detail } = await answer.json();
    return new ServiceError(answer.status, title, detail);
  } catch {
    return new ServiceError(answer.status, `Error ${answer.status}`, "The service gave no reason; see its log.");
  }
}
