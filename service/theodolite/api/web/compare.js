// Compares the same curve of several runs on relative depth.

import { addressOf, choose } from "./address.js";
import { element, problem, runLabel, selection, table } from "./elements.js";
import { Frame } from "./figures.js";
import { readGroups } from "./groups.js";
import { ask, askAll, ofRun } from "./service.js";
import { statisticsOf } from "./statistics.js";

const FIRST = "cosine_of_means_debiased";
const MAX_RUNS = 16;

/** Open the comparison; choices are `run` (repeated), `statistic`, `contrast`, `set` and `site`. */
export function openComparison(node, signal) {
  document.title = "Compare · Theodolite";
  const view = new Comparison(signal);
  node.append(
    element("h1", {}, "Compare runs"),
    element(
      "p",
      { class: "lead" },
      "One statistic of several runs over relative depth: 0 is the input of the first block, 1 the output of the last block.",
    ),
    view.node,
  );
  return ({ choices }) => view.show(choices);
}

class Comparison {
  constructor(signal) {
    this.signal = signal;
    this.runs = element("fieldset", { class: "runs", id: "compare-runs" });
    this.switches = element("div", { class: "switches" });
    this.message = element("div", { "aria-live": "polite" });
    this.frame = new Frame("Comparison", signal, { height: 520, heading: "h2" });
    this.table = element("div");
    this.node = element("div", {}, this.runs, this.switches, this.message, this.frame.node, this.table);
    this.details = new Map();
  }

  async show(choices) {
    this.pending?.abort();
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    const chosen = choices.getAll("run");
    this.node.setAttribute("aria-busy", "true");
    try {
      this.known ??= await askAll("/v1/runs", { limit: 1000 }, this.signal);
      if (signal.aborted) return;
      this.drawRuns(chosen);
      if (!chosen.length) this.showNothing();
      else await this.showChosen(chosen, choices, signal);
    } catch (error) {
      if (!signal.aborted) this.fail(error, choices);
    }
    if (!signal.aborted) this.node.removeAttribute("aria-busy");
  }

  async showChosen(chosen, choices, signal) {
    const [groups, ...details] = await Promise.all([readGroups(), ...chosen.map((id) => this.read(id, signal))]);
    if (signal.aborted) return;
    const question = questionOf(choices, details, groups);
    this.drawSwitches(question);
    this.message.replaceChildren();
    this.ask(chosen, question);
  }

  async read(id, signal) {
    if (!this.details.has(id)) this.details.set(id, await ask(ofRun(id), {}, signal));
    return this.details.get(id);
  }

  ask(chosen, { statistic, contrast, set, site }) {
    this.frame.node.hidden = false;
    this.frame.rename(statistic.replaceAll("_", " "), `compare.${statistic}`);
    this.frame.show(async (until) => {
      const answer = await ask("/v1/compare", { run: chosen, statistic, contrast, set, site }, until);
      this.message.replaceChildren(element("p", {}, answer.description));
      this.table.replaceChildren(...milestones(answer.milestones, this.known));
      // A single curve has a legend too, with the name of its model.
      return { ...answer.figure, layout: { ...answer.figure.layout, showlegend: true } };
    });
  }

  fail(error, choices) {
    this.frame.node.hidden = true;
    this.table.replaceChildren();
    this.message.replaceChildren(problem(error, () => this.show(choices)));
  }

  showNothing() {
    this.frame.node.hidden = true;
    this.switches.replaceChildren();
    this.table.replaceChildren();
    const text = this.known.length ? "Choose at least one run." : "This store has no complete run to compare yet.";
    this.message.replaceChildren(element("p", { class: "nothing" }, text));
  }

  drawRuns(chosen) {
    if (this.boxes) {
      for (const box of this.boxes) box.checked = chosen.includes(box.value);
      return;
    }
    this.boxes = this.known.map((run) =>
      element("input", {
        type: "checkbox",
        value: run.run_id,
        checked: chosen.includes(run.run_id),
        onchange: () => this.choose(),
      }),
    );
    const labels = this.known.map((run, index) =>
      element(
        "label",
        { class: "tick" },
        this.boxes[index],
        runLabel(run),
      ),
    );
    this.runs.replaceChildren(
      element("legend", {}, `Runs (at most ${MAX_RUNS})`),
      element("div", { class: "many" }, labels),
    );
  }

  /** Put new runs last, since the order of the runs sets their colours. */
  choose() {
    const ticked = this.boxes.filter((box) => box.checked).map((box) => box.value);
    const before = new URLSearchParams(location.hash.split("?")[1]).getAll("run").filter((id) => ticked.includes(id));
    choose({ run: [...before, ...ticked.filter((id) => !before.includes(id))] });
  }

  drawSwitches({ statistic, offered, contrast, contrasts, set, sets, site, sites }) {
    const used = document.activeElement?.id;
    const change = (name) => (value) => choose({ [name]: value || null });
    this.switches.replaceChildren(
      ...[
        selection("compare-statistic", "statistic", offered, statistic, change("statistic")),
        sets && selection("compare-set", "set", sets, set, change("set")),
        contrasts.length > 1 && selection("compare-contrast", "contrast", contrasts, contrast, change("contrast")),
        sites && selection("compare-site", "site", [["", "pre and mid"], ...sites], site ?? "", change("site")),
      ].filter(Boolean),
    );
    if (used?.startsWith("compare-")) document.getElementById(used)?.focus();
  }
}

/** Return the curve to compare; the first label that all runs share replaces a missing choice. */
function questionOf(choices, details, groups) {
  const offered = statisticsOf(details, groups);
  const statistic = choices.get("statistic") ?? FIRST;
  const dims = offered.dims[statistic] ?? [];
  const question = { statistic, offered: offered.groups };
  // Milestones belong to a contrast, even for a statistic of sets.
  question.contrasts = shared(details.map((run) => run.contrasts));
  question.contrast = choices.get("contrast") ?? question.contrasts[0];
  if (dims.includes("set")) {
    question.sets = shared(details.map((run) => Object.keys(run.sets)));
    question.set = choices.get("set") ?? question.sets[0];
  }
  if (dims.includes("site")) {
    question.sites = shared(details.map((run) => run.capture.sites));
    question.site = choices.get("site");
  }
  return question;
}

function shared(lists) {
  return lists[0].filter((name) => lists.every((list) => list.includes(name)));
}

function milestones(rows, known) {
  const named = (row) => ({ ...row, name: known.find((run) => run.run_id === row.run_id)?.name });
  const columns = ["run", "contrast", "position", "smallest debiased cosine", "at", "first AUROC interval above 0.95"];
  const share = (depth) => (depth === null ? "" : ` (relative depth ${(100 * depth).toFixed(0)} %)`);
  const cells = rows.map((row) => [
    element("a", { href: addressOf(["runs", row.run_id]) }, runLabel(named(row))),
    row.contrast || "none",
    row.position === null ? "" : String(row.position),
    row.least_cosine === null ? "" : row.least_cosine.toFixed(4),
    row.least_cosine_at + share(row.least_cosine_relative_depth),
    row.separates_at + share(row.separates_relative_depth),
  ]);
  return [
    element("h2", {}, "Smallest cosine and first separation"),
    table(columns, cells, { caption: "Milestones of each run", numbers: [2, 3] }),
  ];
}
