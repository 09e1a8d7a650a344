// Compares the same curves of several runs on relative depth.

import { addressOf, choose, readAddress } from "./address.js";
import { element, problem, replaceControls, runLabel, selection, table } from "./elements.js";
import { Frame } from "./figures.js";
import { ask, askAll, ofRun, readAnalyses } from "./service.js";

const FIRST = ["auroc", "cosine_of_means_debiased"]; // in one figure, if all runs have them
const MAX_RUNS = 16;
const HIDDEN = /_feature(@|$)/; // the index of a feature cannot be compared

/** Open the comparison; choices are `run` (repeated), `statistic`, `contrast`, `set` and `site`. */
export function openComparison(node, signal) {
  document.title = "Compare · Theodolite";
  const view = new Comparison(signal);
  node.append(
    element("h1", "Compare runs"),
    element("p.lead", "Relative depth 0 is the input of the first block, 1 the output of the last one."),
    view.node,
  );
  return ({ choices }) => view.show(choices);
}

/** Return the name of a statistic as titles write it, such as `r squared, map affine, sublayer mlp`. */
function titleOf(statistic) {
  return statistic.split(/[@,]/).join(", ").replaceAll(/[_=]/g, " ").replaceAll(/\bauroc\b/g, "AUROC");
}

class Comparison {
  constructor(signal) {
    this.signal = signal;
    this.runs = element("fieldset.runs", { id: "compare-runs" });
    this.switches = element("div.switches");
    this.message = element("div", { "aria-live": "polite" });
    this.frame = new Frame("Comparison", signal, { height: 520, heading: "h2" });
    this.widths = new Frame("Against the width of the models", signal, { height: 380, heading: "h2", name: "compare.widths" });
    this.scores = new Frame("Scores of each prompt", signal, { height: 520, heading: "h2", name: "compare.scores" });
    this.table = element("div");
    this.node = element("div", this.runs, this.switches, this.message, this.frame.node, this.scores.node, this.widths.node, this.table);
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
      if (chosen.length) await this.showChosen(chosen, choices, signal);
      else {
        const text = this.known.length ? "Choose at least one run." : "This store has no complete run to compare yet.";
        this.switches.replaceChildren();
        this.showOnly(element("p.nothing", text));
      }
    } catch (error) {
      if (!signal.aborted) this.showOnly(problem(error, () => this.show(choices)));
    }
    if (!signal.aborted) this.node.removeAttribute("aria-busy");
  }

  async showChosen(chosen, choices, signal) {
    const [groups, ...details] = await Promise.all([readAnalyses(), ...chosen.map((id) => this.read(id, signal))]);
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
    this.scores.node.hidden = this.widths.node.hidden = true;
    const title = statistic ? titleOf(statistic) : "AUROC and cosine";
    this.frame.rename(title, `compare.${statistic || "overview"}`);
    this.frame.show(async (until) => {
      const answer = await ask("/v1/compare", { run: chosen, statistic: statistic || null, contrast, set, site }, until);
      const differ = chips(answer.differences).map((option) => element("span.badge", option));
      const beyond = answer.auroc_difference.length > 0 && "The band of the difference holds for all depths at once.";
      this.message.replaceChildren(
        ...(differ.length ? [element("p.soft", "Different in the specs: ", differ)] : []),
        ...[statistic && Object.values(answer.statistics).join(" "), beyond].filter(Boolean).map((text) => element("p.soft", text)),
      );
      this.table.replaceChildren(...milestones(answer.milestones, this.known), ...differences(answer.differences, chosen, this.known));
      this.scores.node.hidden = !answer.scores_figure;
      if (answer.scores_figure) this.scores.show(() => answer.scores_figure);
      else this.scores.clear();
      this.widths.node.hidden = !answer.width_figure;
      this.widths.rename("Against the width of the models", `compare.${statistic || "overview"}.widths`);
      if (answer.width_figure) this.widths.show(() => answer.width_figure);
      return answer.figure;
    });
  }

  showOnly(message) {
    this.frame.node.hidden = this.scores.node.hidden = this.widths.node.hidden = true;
    this.table.replaceChildren();
    this.message.replaceChildren(message);
  }

  drawRuns(chosen) {
    if (this.boxes) {
      for (const box of this.boxes) box.checked = chosen.includes(box.value);
      return;
    }
    const onchange = () => this.choose();
    this.boxes = this.known.map(({ run_id: value }) =>
      element("input", { type: "checkbox", value, checked: chosen.includes(value), onchange }),
    );
    const labels = this.known.map((run, index) => element("label.tick", this.boxes[index], runLabel(run)));
    this.runs.replaceChildren(element("legend", `Runs (at most ${MAX_RUNS})`), element("div.many", labels));
  }

  /** Put new runs last, since the order of the runs sets their colours. */
  choose() {
    const ticked = this.boxes.filter((box) => box.checked).map((box) => box.value);
    const before = readAddress().choices.getAll("run").filter((id) => ticked.includes(id));
    choose({ run: [...before, ...ticked.filter((id) => !before.includes(id))] });
  }

  /** Choose the contrast of one run; the address has the contrasts of all runs. */
  chooseOwn(own, id, name) {
    choose({ contrast: own.map((run) => `${run.id}:${run.id === id ? name : run.chosen}`) });
  }

  drawSwitches({ statistic, offered, contrast, contrasts, own, set, sets, site, sites }) {
    const change = (name) => (value) => choose({ [name]: value || null });
    replaceControls(this.switches, [
      selection("compare", "statistic", offered, statistic, change("statistic")),
      sets && selection("compare", "set", sets, set, change("set")),
      contrasts.length > 1 && selection("compare", "contrast", contrasts, contrast[0], change("contrast")),
      ...own.map(({ id, names, chosen }) =>
        selection("compare", `contrast of ${id}`, names, chosen, (name) => this.chooseOwn(own, id, name)),
      ),
      sites && selection("compare", "site", [["", "pre and mid"], ...sites], site ?? "", change("site")),
    ]);
  }
}

/** Return the curve to compare; the first label that all runs share replaces a missing choice. */
function questionOf(choices, details, groups) {
  const offered = statisticsOf(details, groups);
  const ofAll = FIRST.filter((name) => name in offered.dims);
  const statistic = choices.get("statistic") ?? (ofAll.length === FIRST.length ? "" : FIRST[1]);
  if (ofAll.length === FIRST.length) offered.groups.unshift(["", "AUROC and cosine"]);
  const dims = offered.dims[statistic || FIRST[0]] ?? [];
  const question = { statistic, offered: offered.groups };
  // Milestones belong to a contrast, even for a statistic of sets.
  question.contrasts = shared(details.map((run) => run.contrasts));
  question.own = question.contrasts.length ? [] : ownContrasts(details, choices.getAll("contrast"));
  const named = choices.get("contrast") ?? question.contrasts[0];
  question.contrast = question.contrasts.length ? [named] : question.own.map(({ id, chosen }) => `${id}:${chosen}`);
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

/** Return the runs with contrasts, and the chosen contrast of each, if no name is a contrast of all runs. */
function ownContrasts(details, given) {
  const chosen = Object.fromEntries(given.filter((one) => one.includes(":")).map((one) => one.split(":")));
  return details
    .filter((run) => run.contrasts.length)
    .map(({ run_id: id, contrasts: names }) => ({ id, names, chosen: names.includes(chosen[id]) ? chosen[id] : names[0] }));
}

function shared(lists) {
  return lists[0].filter((name) => lists.every((list) => list.includes(name)));
}

/** Return a table of the extremes along depth of each run, and of the depths from which on its sets are separated. */
function milestones(rows, known) {
  const named = (row) => ({ ...row, name: known.find((run) => run.run_id === row.run_id)?.name });
  const columns = [
    "run", "contrast", "position", "smallest debiased cosine", "largest AUROC", "first depth above permuted labels",
    "depth from which the AUROC band stays above 0.95",
  ];
  const share = (depth) => (depth === null ? "" : ` (${(100 * depth).toFixed(0)} %)`);
  const at = (value, digits, depth) => (value === null ? depth : `${value.toFixed(digits)} at ${depth}`);
  const cells = rows.map((row) => [
    element("a", { href: addressOf(["runs", row.run_id]) }, runLabel(named(row))),
    row.contrast || "none",
    row.position === null ? "" : String(row.position),
    at(row.least_cosine, 4, row.least_cosine_at) + share(row.least_cosine_relative_depth),
    at(row.largest_auroc, 3, row.largest_auroc_at),
    row.above_chance_at,
    separation(row) + share(row.separates_relative_depth),
  ]);
  return [
    element("h2", "Smallest cosine and separation"),
    element("div.wrapped", table(columns, cells, "Smallest cosine and separation of each run", [2])),
    element("p.soft", "Percentages are relative depths."),
  ];
}

/** Return the depth from which on the sets are separated, or how near they come. */
function separation({ separates_at: depth, largest_auroc_low: low }) {
  return depth === "never" && low !== null ? `none; the largest lower end of the band is ${low.toFixed(3)}` : depth;
}

/** Return the options in which the surveys differ; a section of the spec with many of them is one. */
function chips(options) {
  const sections = options.map(({ option }) => option.split(".")[0]);
  const many = (section) => sections.filter((one) => one === section).length > 3;
  return [...new Set(options.map(({ option }, index) => (many(sections[index]) ? sections[index] : option)))];
}

/** Return a table of the options in which the surveys differ, with a column for each run. */
function differences(options, chosen, known) {
  if (chosen.length < 2) return [];
  const title = element("h2", "How the surveys differ");
  if (!options.length) return [title, element("p.nothing", "The specs of these surveys are equal.")];
  const columns = ["option", ...chosen.map((id) => runLabel(known.find((run) => run.run_id === id) ?? { run_id: id }))];
  const rows = options.map(({ option, values }) => [element("code", option), ...chosen.map((id) => shown(values[id]))]);
  return [title, table(columns, rows, "Options in which the surveys differ")];
}

/** Return the value of an option as a spec writes it, without the end of a long list or text. */
function shown(value) {
  if (value === undefined) return "not in the spec";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 80 ? `${text.slice(0, 79)}…` : text;
}

/** Return the statistics that all runs have, as groups of options for a select, and the dimensions of each. */
function statisticsOf(runs, groups) {
  const dims = {};
  const offered = [];
  for (const { name: group, title, profiles } of groups) {
    const stored = runs.map((run) => run.results[group] ?? {});
    const curves = profiles.filter(({ name, variable }) => !HIDDEN.test(name) && stored.every((group) => variable in group));
    for (const profile of curves) dims[profile.name] = profile.dims;
    if (curves.length)
      offered.push({ label: title, options: curves.map(({ name }) => [name, titleOf(name)]) });
  }
  return { dims, groups: offered };
}
