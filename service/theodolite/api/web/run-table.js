// All runs of the store as a table that any column orders, and that selects runs for a comparison.

import { addressOf, choose } from "./address.js";
import { element, fill, sortHead } from "./elements.js";
import { askAll, readAnalyses } from "./service.js";

const MAX_COMPARED = 16;
const USUAL_ORDER = "-created";
const COLUMNS = {
  name: { title: "name", of: (run) => run.name ?? "" },
  tags: { title: "tags", of: (run) => run.tags.join(", ") },
  model: { title: "model", of: (run) => run.model ?? run.run_id },
  created: { title: "created (UTC)", of: (run) => run.created },
  sets: { title: "prompt sets", of: (run) => Object.entries(run.sets).map(([set, count]) => `${set} ${count}`).join(", ") },
  contrasts: { title: "contrasts", of: (run) => run.contrasts.join(", ") },
  results: { title: "results", of: (run) => run.analyses.length, isNumber: true },
  state: { title: "state", of: (run) => run.state },
};

/** Open the table of runs; the choice `order` is a column, after `-` in descending order. */
export function openRunTable(node, signal) {
  document.title = "Runs · Theodolite";
  const table = new RunTable(signal);
  node.append(
    element("h1", "Runs"),
    element("p.lead", "Every survey in this store. The name of a column orders the runs; select runs to compare them."),
    table.node,
  );
  return ({ choices }) => table.show(choices.get("order") ?? USUAL_ORDER);
}

class RunTable {
  constructor(signal) {
    this.signal = signal;
    this.chosen = new Set();
    this.node = element("div");
  }

  async show(order) {
    this.order = order;
    await fill(this.node, this.signal, async () => {
      this.runs ??= await askAll("/v1/runs", { incomplete: true, limit: 1000 }, this.signal);
      this.titles ??= Object.fromEntries((await readAnalyses()).map(({ name, title }) => [name, title]));
      return this.runs.length ? this.drawn() : element("p.nothing", "This store has no runs.");
    });
  }

  /** Return the columns; that of tags only if a run has one. */
  columns() {
    const hasTags = this.runs.some((run) => run.tags.length);
    return Object.entries(COLUMNS).filter(([name]) => name !== "tags" || hasTags);
  }

  drawn() {
    const column = COLUMNS[this.order.replace(/^-/, "")] ?? COLUMNS.created;
    const sign = this.order.startsWith("-") ? -1 : 1;
    const compared = (one, other) =>
      column.isNumber ? column.of(one) - column.of(other) : column.of(one).localeCompare(column.of(other));
    const sorted = [...this.runs].sort((one, other) => sign * compared(one, other));
    this.compare = element("button.main", { type: "button", onclick: () => this.goToComparison() });
    this.updateButton();
    const changed = (order) => choose({ order });
    const heads = this.columns().map(([name, { title, isNumber }]) =>
      sortHead(name, { title, kind: isNumber ? "number" : null, order: this.order, usual: USUAL_ORDER, changed }));
    return [
      element("div.buttons", this.compare),
      element("div.scroll", { tabindex: 0, role: "region", "aria-label": "Runs of the store" },
        element("table.browsed.runs-table",
          element("caption.unseen", "Runs of the store"),
          element("thead", element("tr", element("th", { scope: "col" }, element("span.unseen", "selected")), heads)),
          element("tbody", sorted.map((run) => this.row(run))),
        ),
      ),
    ];
  }

  row(run) {
    const box = element("input", {
      type: "checkbox",
      checked: this.chosen.has(run.run_id),
      disabled: run.analyses.length === 0,
      "aria-label": `Select ${run.name ?? run.model ?? ""} ${run.run_id}`,
      onchange: () => {
        if (box.checked) this.chosen.add(run.run_id);
        else this.chosen.delete(run.run_id);
        this.updateButton();
      },
    });
    const address = addressOf(["runs", run.run_id]);
    const cells = {
      ...Object.fromEntries(Object.entries(COLUMNS).map(([name, { of }]) => [name, String(of(run))])),
      tags: element("span", run.tags.map((tag) => element("span.badge", tag))),
      model: element("span.called", element("a", { href: address }, run.model ?? run.run_id), run.model && element("code.soft.small", run.run_id)),
      created: run.created.slice(0, 16).replace("T", " "),
      results: element("span", { title: run.analyses.map((name) => this.titles[name] ?? name).join(", ") }, String(run.analyses.length)),
      state: stateOf(run, this.titles),
    };
    return element("tr", element("td", box), this.columns().map(([name, { isNumber }]) => name === "model"
      ? element("th", { scope: "row" }, cells[name])
      : element("td", { class: isNumber ? "number" : null, "data-column": name }, cells[name])));
  }

  updateButton() {
    const count = this.chosen.size;
    this.compare.disabled = count === 0 || count > MAX_COMPARED;
    this.compare.textContent = count > MAX_COMPARED
      ? `${count} runs are selected; a comparison has at most ${MAX_COMPARED}`
      : count ? `Compare ${count} selected ${count === 1 ? "run" : "runs"}` : "Select runs to compare";
  }

  goToComparison() {
    location.hash = addressOf(["compare"], { run: [...this.chosen] });
  }
}

/** Return the state of a run, and which of its requested results are not finished. */
function stateOf(run, titles) {
  const missing = run.unfinished.map((name) => titles[name] ?? name).join(", ");
  return [
    element("span.state", { "data-state": run.state }, run.state),
    missing && element("span.soft.small", ` not finished: ${missing}`),
    run.reason && element("span.soft.small", ` ${run.reason}`),
  ].filter(Boolean);
}
