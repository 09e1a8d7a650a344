// Asking the service. Its errors are problems (RFC 9457) whose words are shown as they are.

import { askForToken, currentToken } from "./token.js";

/** What the service refused, or that it cannot be reached. */
export class ServiceError extends Error {
  constructor(status, title, detail) {
    super(detail);
    this.status = status;
    this.title = title;
  }
}

/** Return an answer's JSON; `parameters` may hold lists. */
export async function ask(path, parameters = {}, signal = null) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters))
    for (const one of [value].flat()) if (one !== null && one !== undefined) query.append(name, one);
  return (await request(`${path}${query.size ? `?${query}` : ""}`, { signal })).json();
}

/** Return an answer as text. */
export async function askText(path, signal = null) {
  return (await request(path, { signal })).text();
}

/** Send something, and return the answer's JSON. */
export async function send(method, path, content) {
  const body = content === undefined ? undefined : JSON.stringify(content);
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  return (await request(path, { method, body, headers })).json();
}

/** Return everything of a list that comes in pages. */
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

/** Return the path of a run, or of something below it. */
export function ofRun(runId, ...parts) {
  return ["/v1/runs", runId, ...parts].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");
}

async function request(path, options) {
  for (;;) {
    const token = currentToken();
    const headers = token ? { ...options.headers, Authorization: `Bearer ${token}` } : options.headers;
    const answer = await reach(path, { ...options, headers });
    if (answer.ok) return answer;
    const error = await problemOf(answer);
    // Many calls may be refused at once: they wait for one dialog, and then all ask again.
    // What the dialog's title says anyway is not said again: the reason is that of a token that was refused.
    if (answer.status !== 401 || !(await askForToken(token ? error.message : "", token))) throw error;
    options.signal?.throwIfAborted();
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, "No answer", "The service cannot be reached; see whether it runs, and try again.");
  }
}

async function problemOf(answer) {
  try {
    const { title, detail } = await answer.json();
    return new ServiceError(answer.status, title, detail);
  } catch {
    return new ServiceError(answer.status, `Error ${answer.status}`, "The service gave no reason; its log may.");
  }
}
