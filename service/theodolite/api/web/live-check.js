// The service reads and checks the text of a spec, a moment after the text has changed. It never moves the focus.

import { element, problem } from "./elements.js";
import { send } from "./service.js";

const MILLISECONDS = 400;
const ACCEPTED = "This is a valid survey spec, and this service accepts it.";
const NO_CLUSTER = "This is a valid survey spec, but this service has no cluster that could run the survey.";

export class LiveCheck {
  /**
   * `found` gets the spec of a text; `answer` shows the result; `mark` gets the error, or null for a valid spec, and
   * whether the service accepts it. `signal` ends all checks.
   */
  constructor(found, answer, mark, signal) {
    Object.assign(this, { found, answer, mark });
    this.asksForToken = true;
    signal.addEventListener("abort", () => this.stop());
  }

  /** Check a text soon, instead of the one before; the result of that one is marked as old. `spec` may be unknown. */
  soon(text, milliseconds = MILLISECONDS, spec = null) {
    this.stop();
    this.answer.setAttribute("aria-busy", "true");
    this.timer = setTimeout(() => this.check(text, spec), milliseconds);
  }

  /** End the check that waits or runs. */
  stop() {
    clearTimeout(this.timer);
    this.running?.abort();
    this.answer.removeAttribute("aria-busy");
  }

  async check(text, known) {
    const { signal } = (this.running = new AbortController());
    try {
      const options = { signal, asksForToken: this.asksForToken };
      const spec = known ?? (await readSpec(text, options));
      if (!known) this.found(spec);
      const { id, has_cluster: isAccepted } = await send("POST", "/v1/spec/check", spec, options);
      const message = `${isAccepted ? ACCEPTED : NO_CLUSTER} The id of its survey job is ${id.slice(0, 12)}….`;
      this.show(element(isAccepted ? "p.good" : "p.warn", message), null, isAccepted);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) this.asksForToken = false; // the user closed the dialog: only a submission opens it again
      const again = () => this.soon(text, 0, known);
      this.show(error.status ? errorMessage(error) : problem(error, again), error);
    }
  }

  show(message, error = null, isAccepted = false) {
    this.answer.removeAttribute("aria-busy");
    this.mark(error, isAccepted);
    // A screen reader reads each new message, so an equal one stays.
    if (this.answer.textContent !== message.textContent) this.answer.replaceChildren(message);
  }
}

/** Return a promise of the spec in a text of YAML or JSON; `options` are those of `request`. */
export async function readSpec(text, options = {}) {
  return (await send("POST", "/v1/spec/parse", { text }, options)).spec;
}

/** Return the message of an error; the service lists each wrong field of a spec on its own line. */
export function errorMessage(error, invalid = "The spec is not valid") {
  const lines = linesOf(error);
  const [first, ...rest] = error.status === 422 && lines.length > 1 ? ["", ...lines.slice(1)] : lines;
  const title = error.status === 422 ? invalid : error.title;
  return element("div.problem",
    element("p", title && element("strong", `${title}. `), first),
    rest.length > 0 && element("ul", rest.map((line) => element("li", line))),
  );
}

/** Return the lines of an error's message. */
export function linesOf(error) {
  return error.message.split("\n").map((line) => line.trim()).filter(Boolean);
}
