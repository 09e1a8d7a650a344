// The list of runs beside every view; a drawer on a narrow page.

import { addressOf } from "./address.js";
import { element, problem } from "./elements.js";
import { askAll } from "./service.js";

const part = (id) => document.getElementById(id);

export class RunList {
  /** `changed` is called when the user tries again to read the list after an error. */
  constructor(changed) {
    this.changed = changed;
    this.runs = null;
    this.marked = null;
    part("run-search").addEventListener("input", () => this.draw());
    part("drawer").addEventListener("click", () => this.open(part("drawer").ariaExpanded !== "true"));
  }

  /** Read the list again and return it; null if it cannot be read. */
  async refresh() {
    this.reading ??= this.read().finally(() => (this.reading = null));
    return this.reading;
  }

  async read() {
    if (!this.runs) part("run-count").textContent = "Loading…";
    try {
      const runs = await askAll("/v1/runs", { incomplete: true, limit: 1000 });
      if (JSON.stringify(runs) !== JSON.stringify(this.runs)) {
        this.runs = runs;
        this.draw();
      }
      return runs;
    } catch (error) {
      part("run-count").textContent = "";
      part("runs").replaceChildren(element("li", problem(error, () => this.changed())));
      this.runs = null;
      return null;
    }
  }

  /** Mark the run that is shown. */
  mark(runId) {
    this.marked = runId ?? null;
    for (const link of part("runs").querySelectorAll("a"))
      link.ariaCurrent = link.dataset.run === this.marked ? "page" : null;
    const run = this.runs?.find((one) => one.run_id === this.marked);
    part("drawer").textContent = run ? `Runs · ${nameOf(run)}` : "Runs";
  }

  open(isOpen) {
    part("drawer").ariaExpanded = String(isOpen);
    if (isOpen) part("run-search").focus();
  }

  close() {
    this.open(false);
  }

  draw() {
    const words = part("run-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = this.runs.filter((run) => words.every((word) => searchText(run).includes(word)));
    part("runs").replaceChildren(...matches.map((run) => element("li", this.line(run))));
    const all = this.runs.length;
    part("run-count").textContent = words.length
      ? `${matches.length} of ${all} runs`
      : `${all} ${all === 1 ? "run" : "runs"}`;
    this.mark(this.marked);
  }

  line(run) {
    const digest = run.run_id.split("-").at(-1).slice(0, 6);
    const details = [run.name && run.model, ...run.tags, ...subjects(run), run.created.slice(0, 10), digest].filter(Boolean);
    return element("a", { href: addressOf(["runs", run.run_id]), "data-run": run.run_id, title: run.run_id },
      element("span.run-name", nameOf(run)),
      element("span.soft.small", details.join(" · ")),
      run.state !== "complete" && element("span.state", { "data-state": run.state }, run.state),
      run.unfinished.length > 0 && element("span.soft.small", `not finished: ${run.unfinished.join(", ")}`),
    );
  }
}

function nameOf(run) {
  return run.name ?? run.model ?? run.run_id;
}

/** Return the contrasts of a run, or else its prompt sets, or else `weights`. */
function subjects({ model, contrasts, sets }) {
  const names = contrasts.length ? contrasts : Object.keys(sets);
  return names.length || !model ? names : ["weights"];
}

function searchText(run) {
  const texts = [run.model, run.name, ...run.tags, run.run_id, run.state, ...run.contrasts, ...Object.keys(run.sets)];
  return texts.join(" ").toLowerCase();
}
