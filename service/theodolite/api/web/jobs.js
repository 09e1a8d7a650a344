// Survey jobs on the cluster: their state, progress and logs.

import { addressOf } from "./address.js";
import { element, problem } from "./elements.js";
import { ask, askText, events, send } from "./service.js";

const SECONDS = 2;
const ACTIVE = ["queued", "running"];

/** Return whether a survey job has not ended. */
export const isActive = ({ state }) => ACTIVE.includes(state);
const ENDED = ["failed", "stopped", "lost"]; // submitted again, they continue where they stopped

/** Open the list of survey jobs, or one job, whose id is the second part of the address. */
export function openJobs(node, signal) {
  document.title = "Survey jobs · Theodolite";
  let jobs = null;
  return ({ path }) => {
    jobs?.stop.abort();
    jobs = new Jobs(signal, path[1] ?? null);
    node.replaceChildren(element("h1", path[1] ? "Survey job" : "Survey jobs"), jobs.node);
    jobs.poll();
  };
}

/** All survey jobs, or the one of an id `only`; `drawn` gets them each time after the page has shown them. */
export class Jobs {
  constructor(signal, only, drawn = () => {}) {
    Object.assign(this, { only, drawn });
    this.stop = new AbortController();
    this.signal = AbortSignal.any([signal, this.stop.signal]);
    this.rows = new Map();
    this.message = element("div", element("p.soft.waiting", { role: "status" }, "Loading…"));
    this.list = element("ul.jobs");
    const all = only && element("p", element("a", { href: "#/jobs" }, "All survey jobs"));
    this.node = element("div", all, this.message, this.list);
    document.addEventListener("visibilitychange", () => this.poll(), { signal: this.signal });
    this.signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  /** Read the jobs, and read them again later while one is active and the page is visible. */
  async poll() {
    clearTimeout(this.timer);
    if (document.hidden) this.following?.abort(); // a browser has few connections to one service
    if (document.hidden || this.signal.aborted) return;
    try {
      const jobs = this.only
        ? [await ask(`/v1/jobs/${encodeURIComponent(this.only)}`, {}, this.signal)]
        : (await ask("/v1/jobs", {}, this.signal)).items;
      this.draw(jobs);
      if (this.following || !jobs.some(isActive)) return;
      if (this.only) await this.follow();
      else this.timer = setTimeout(() => this.poll(), SECONDS * 1000);
    } catch (error) {
      if (!this.signal.aborted) this.message.replaceChildren(problem(error, () => this.poll()));
    }
  }

  /** Draw one job after each change that the service sends; if it stops before the job has ended, read the job again. */
  async follow() {
    this.following = new AbortController();
    const signal = AbortSignal.any([this.signal, this.following.signal]);
    const stream = events(`/v1/jobs/${encodeURIComponent(this.only)}/events`, signal);
    // Without a next event, also after an error, the service sends none now: then the job is read again.
    const next = async () => (await stream.next().catch(() => ({}))).value;
    let job = null;
    try {
      for (let event = await next(); event; event = await next()) if (event.name === "job") this.draw([(job = event.data)]);
    } finally {
      this.following.abort();
      this.following = null;
    }
    if (!job || isActive(job)) this.timer = setTimeout(() => this.poll(), SECONDS * 1000);
  }

  draw(jobs) {
    if (this.signal.aborted) return;
    const nothing = element("p.nothing",
      "No survey job was submitted to the cluster. ",
      element("a", { href: "#/new" }, "Submit a survey."),
    );
    this.message.replaceChildren(...(jobs.length ? [] : [nothing]));
    for (const [id, row] of this.rows)
      if (!jobs.some((job) => job.id === id)) {
        row.node.remove();
        this.rows.delete(id);
      }
    jobs.forEach((job, index) => {
      if (!this.rows.has(job.id)) this.rows.set(job.id, new JobRow(job, () => this.poll()));
      const row = this.rows.get(job.id);
      row.update(job);
      if (this.list.children[index] !== row.node) this.list.insertBefore(row.node, this.list.children[index] ?? null);
    });
    this.drawn(jobs);
  }
}

/** One job; its elements are updated in place, so a button keeps the focus during progress. */
class JobRow {
  constructor({ id, name, model }, changed) {
    this.id = id;
    this.changed = changed;
    const title = name || model;
    this.state = element("span.state", { role: "status" });
    this.about = element("p.soft.small");
    this.progress = element("div.progress");
    this.reason = element("p.warn", { hidden: true });
    this.run = element("a", { hidden: true });
    const button = (text, label, onclick) => element("button", { type: "button", "aria-label": label, onclick }, text);
    this.stop = button("Stop", `Stop ${title}`, () => this.stopIt());
    this.logs = button("Logs", `Logs of ${title}`, () => this.showLogs());
    this.again = button("Submit again", `Submit ${title} again`, () => this.submitAgain());
    this.spec = element("pre.logs", { tabindex: 0, "aria-label": `Spec of ${title}` });
    this.logs.ariaExpanded = "false";
    this.message = element("div", { "aria-live": "polite" });
    this.node = element("li.card.job", { "data-job": id },
      element("h2", element("a", { href: addressOf(["jobs", id]) }, title), " ", this.state),
      this.about,
      this.reason,
      this.progress,
      element("div.buttons", this.run, this.stop, this.again, this.logs),
      this.message,
      element("details", element("summary", "Spec"), this.spec),
    );
  }

  update(job) {
    this.node.dataset.jobState = job.state;
    if (this.state.textContent !== job.state) this.state.textContent = job.state;
    this.state.dataset.state = job.state;
    const tries = job.attempt > 1 ? ` · attempt ${job.attempt}` : "";
    const when = job.submitted ? ` · submitted ${job.submitted.slice(0, 16).replace("T", " ")} UTC` : "";
    this.about.textContent = `${job.model}${when}${tries} · ${job.id.slice(0, 12)}…`;
    this.reason.hidden = !job.reason;
    this.reason.textContent = job.reason ?? "";
    this.run.hidden = !job.run_id;
    if (job.run_id) {
      this.run.href = addressOf(["runs", job.run_id]);
      this.run.textContent = job.state === "succeeded" ? "Open the run" : "Open the unfinished run";
    }
    this.stop.hidden = !(job.yours && isActive(job));
    this.logs.hidden = !job.yours;
    const isDeleted = job.state === "succeeded" && !job.run_id;
    this.again.hidden = !ENDED.includes(job.state) && !isDeleted;
    this.submitted = job.spec;
    this.spec.textContent = JSON.stringify(job.spec, null, 2);
    this.drawProgress(job.progress);
  }

  drawProgress(progress) {
    const bars = Object.entries(progress).map(([set, { done, total }]) =>
      element("label",
        element("span", set),
        element("progress", { max: total || 1, value: done }),
        element("span.soft.small", `${done} of ${total} prompts`),
      ),
    );
    this.progress.replaceChildren(...bars);
  }

  async stopIt() {
    this.stop.disabled = true;
    await this.attempt(async () => this.update(await send("DELETE", `/v1/jobs/${this.id}`)));
    this.stop.disabled = false;
    this.changed();
  }

  async submitAgain() {
    this.again.disabled = true;
    await this.attempt(async () => this.update(await send("POST", "/v1/jobs", this.submitted)));
    this.again.disabled = false;
    this.changed();
  }

  async showLogs() {
    const isOpen = this.logs.ariaExpanded === "true";
    this.logs.ariaExpanded = String(!isOpen);
    if (isOpen) return this.message.replaceChildren();
    await this.attempt(async () => {
      const text = (await askText(`/v1/jobs/${this.id}/logs`)) || "The job has printed nothing yet.";
      this.message.replaceChildren(element("pre.logs", { tabindex: 0, "aria-label": "Logs" }, text));
    });
  }

  async attempt(act) {
    try {
      await act();
    } catch (error) {
      this.message.replaceChildren(problem(error));
    }
  }
}
