// Surveys that were sent to the cluster: how far they are, while they are under way.

import { addressOf } from "./address.js";
import { element, problem } from "./elements.js";
import { ask, askText, send } from "./service.js";

const SECONDS = 2;
const UNDER_WAY = ["queued", "running"];

/** Open the list of jobs, or the one whose id is the address's second part. */
export function openJobs(node, signal) {
  document.title = "Jobs · Theodolite";
  let jobs = null;
  return ({ path }) => {
    jobs?.end();
    jobs = new Jobs(signal, path[1] ?? null);
    node.replaceChildren(element("h1", {}, path[1] ? "Job" : "Jobs"), jobs.node);
    jobs.poll();
  };
}

class Jobs {
  constructor(signal, only) {
    this.only = only;
    this.stop = new AbortController();
    this.signal = AbortSignal.any([signal, this.stop.signal]);
    this.rows = new Map();
    this.said = element("div", {}, element("p", { class: "soft waiting", role: "status" }, "Reading…"));
    this.list = element("ul", { class: "jobs" });
    const all = only && element("p", {}, element("a", { href: "#/jobs" }, "All jobs"));
    this.node = element("div", {}, all, this.said, this.list);
    document.addEventListener("visibilitychange", () => this.poll(), { signal: this.signal });
    this.signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  end() {
    this.stop.abort();
  }

  /** Read the jobs, and again after a while as long as one is under way and somebody looks. */
  async poll() {
    clearTimeout(this.timer);
    if (document.hidden || this.signal.aborted) return;
    try {
      const jobs = this.only
        ? [await ask(`/v1/jobs/${encodeURIComponent(this.only)}`, {}, this.signal)]
        : (await ask("/v1/jobs", {}, this.signal)).items;
      if (this.signal.aborted) return;
      this.draw(jobs);
      const isUnderWay = jobs.some((job) => UNDER_WAY.includes(job.state));
      if (isUnderWay) this.timer = setTimeout(() => this.poll(), SECONDS * 1000);
    } catch (error) {
      if (!this.signal.aborted) this.said.replaceChildren(problem(error, () => this.poll()));
    }
  }

  draw(jobs) {
    const nothing = element(
      "p",
      { class: "nothing" },
      "No survey has been sent to the cluster. ",
      element("a", { href: "#/new" }, "Write one."),
    );
    this.said.replaceChildren(...(jobs.length ? [] : [nothing]));
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
  }
}

/** One job; it is changed in place, so that a button keeps the focus while progress goes on. */
class JobRow {
  constructor({ id, name, model }, changed) {
    this.id = id;
    this.changed = changed;
    const title = name || model;
    this.state = element("span", { class: "state", role: "status" });
    this.about = element("p", { class: "soft small" });
    this.progress = element("div", { class: "progress" });
    this.reason = element("p", { class: "warn", hidden: true });
    this.run = element("a", { hidden: true });
    this.stop = element(
      "button",
      { type: "button", "aria-label": `Stop ${title}`, onclick: () => this.stopIt() },
      "Stop",
    );
    this.logs = element(
      "button",
      { type: "button", "aria-label": `Logs of ${title}`, "aria-expanded": "false", onclick: () => this.showLogs() },
      "Logs",
    );
    this.said = element("div", { "aria-live": "polite" });
    this.node = element(
      "li",
      { class: "card job", "data-job": id },
      element("h2", {}, element("a", { href: addressOf(["jobs", id]) }, title), " ", this.state),
      this.about,
      this.reason,
      this.progress,
      element("div", { class: "buttons" }, this.run, this.stop, this.logs),
      this.said,
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
      this.run.textContent = job.state === "succeeded" ? "Open its run" : "Its run so far";
    }
    this.stop.hidden = !(job.yours && UNDER_WAY.includes(job.state));
    this.logs.hidden = !job.yours;
    this.drawProgress(job.progress);
  }

  drawProgress(progress) {
    const bars = Object.entries(progress).map(([set, { done, total }]) =>
      element(
        "label",
        {},
        element("span", {}, set),
        element("progress", { max: total || 1, value: done }),
        element("span", { class: "soft small" }, `${done} of ${total} prompts`),
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

  async showLogs() {
    const isOpen = this.logs.ariaExpanded === "true";
    this.logs.ariaExpanded = String(!isOpen);
    if (isOpen) return this.said.replaceChildren();
    await this.attempt(async () => {
      const text = await askText(`/v1/jobs/${this.id}/logs`);
      this.said.replaceChildren(
        element("pre", { class: "logs", tabindex: 0, "aria-label": "Logs" }, text || "Nothing was printed yet."),
      );
    });
  }

  async attempt(act) {
    try {
      await act();
    } catch (error) {
      this.said.replaceChildren(problem(error));
    }
  }
}
