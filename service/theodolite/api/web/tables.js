// The flat tables of a run: rows that pass conditions, in an order, by page, and as files.

import { addressOf, choose } from "./address.js";
import { arraysOf } from "./arrays.js";
import { columnOf, exampleOf, shownConditions, writtenConditions } from "./conditions.js";
import { element, fill, problem, replaceControls, selection, sortHead } from "./elements.js";
import { downloadFile } from "./export.js";
import { ask, ofRun, queryOf, readAnalyses, request } from "./service.js";

const ROWS = 100;
const FILES = [["Download CSV", "text/csv", "csv"], ["Download Parquet", "application/vnd.apache.parquet", "parquet"]];

/** Open the tables; choices are `table`, `where`, `order` and `from`. */
export function openTables(node, signal, run) {
  const view = new Tables(run, signal);
  node.append(...view.nodes);
  return ({ choices }) => view.show(choices);
}

class Tables {
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.switches = element("div.switches");
    this.list = element("div");
    this.message = element("div", { "aria-live": "polite" });
    this.arrays = element("div");
    this.nodes = [element("h2", "Tables"), intro(), this.arrays, this.switches, this.message, this.list];
  }

  async show(choices) {
    this.pending?.abort(); // a slow answer to an earlier choice must not replace this one
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    this.name = choices.get("table") ?? this.run.tables[0];
    this.chosen = { where: choices.getAll("where"), order: choices.get("order") };
    const groups = await readAnalyses().catch(() => []);
    if (signal.aborted) return;
    if (!this.arrays.hasChildNodes() && groups.length) this.arrays.append(arraysOf(this.run, groups));
    this.redrawSwitches(groups, choices);
    this.meaning = meaningOf(groups.flatMap(({ tables }) => tables).find(({ name }) => name === this.name));
    this.message.replaceChildren();
    await fill(this.list, signal, () => this.loaded(choices.get("from"), signal));
  }

  /** Return the rows; if the service refuses the conditions, return the fields to correct them, and show its message. */
  async loaded(cursor, signal) {
    const path = ofRun(this.run.run_id, "tables", this.name);
    try {
      return this.rows(await ask(path, { ...this.chosen, limit: ROWS, cursor }, signal));
    } catch (error) {
      if (error.status !== 422) throw error;
      const { columns } = await ask(path, { limit: 1 }, signal);
      if (!signal.aborted) this.message.replaceChildren(problem(error));
      return this.table(columns, []);
    }
  }

  redrawSwitches(groups, choices) {
    const owned = groups.map(({ title, tables }) => (
      { label: title, options: tables.map(({ name }) => name).filter((name) => this.run.tables.includes(name)) }
    ));
    const known = owned.flatMap(({ options }) => options);
    const others = { label: "Other", options: this.run.tables.filter((table) => !known.includes(table)) };
    const offered = [...owned, others].filter(({ options }) => options.length);
    const back = choices.get("from") && element("button", { type: "button", onclick: () => choose({ from: null }) }, "First page");
    const clear = this.chosen.where.length > 0 &&
      element("button", { type: "button", onclick: () => choose({ where: null, from: null }) }, "Remove all conditions");
    replaceControls(this.switches, [
      selection("tables", "table", offered, this.name, (table) => choose({ table, where: null, order: null, from: null })),
      ...FILES.map(([text, type, ending]) => this.fileButton(text, type, ending)),
      clear,
      back,
    ]);
  }

  /** Return a button that downloads all selected rows as a file. */
  fileButton(text, type, ending) {
    const get = async ({ target }) => {
      const { name } = this; // the user may choose another table before the file arrives
      target.disabled = true;
      this.message.replaceChildren();
      try {
        const path = `${ofRun(this.run.run_id, "tables", name)}${queryOf(this.chosen)}`;
        const answer = await request(path, { headers: { Accept: type }, signal: this.signal });
        downloadFile(`${this.run.run_id}.${name}.${ending}`, await answer.blob());
      } catch (error) {
        this.message.replaceChildren(problem(error));
      }
      target.disabled = false;
    };
    const title = "All rows that pass the conditions, in this order";
    return element("button", { type: "button", id: `tables-${ending}`, title, onclick: get }, text);
  }

  rows({ columns, items, total, next }) {
    const count = total.toLocaleString("en");
    return [
      this.meaning,
      element("p.soft", { role: "status" }, `${count} ${this.chosen.where.length ? "rows pass the conditions" : "rows"}.`),
      this.table(columns, items),
      next && element("div.buttons", element("button", { type: "button", id: "tables-next", onclick: () => choose({ from: next }) }, "Next page")),
    ];
  }

  /** Return a table of rows with a field for conditions below the name of each column. */
  table(columns, items) {
    const names = Object.keys(columns);
    const { order } = this.chosen;
    const changed = (following) => choose({ order: following, from: null });
    const kind = (name) => (columns[name] === "number" ? "number" : null);
    const body = items.map((row) => element("tr", names.map((name) => element("td", { class: kind(name) }, this.cell(row, name)))));
    const caption = `Rows of ${this.name}`;
    return element("div.scroll", { tabindex: 0, role: "region", "aria-label": caption },
      element("table.browsed",
        element("caption.unseen", caption),
        element("thead",
          element("tr", names.map((name) => sortHead(name, { kind: kind(name), order, changed }))),
          element("tr", names.map((name) => element("td", this.filter(name, columns[name])))),
        ),
        element("tbody", body),
      ),
    );
  }

  /** Return the field of a column's conditions. */
  filter(name, kind) {
    const own = this.chosen.where.filter((text) => columnOf(text) === name);
    const field = element("input", {
      id: `where-${name}`,
      type: "search",
      autocomplete: "off",
      maxlength: 200,
      "aria-label": `Condition on ${name}`,
      placeholder: exampleOf(kind),
    });
    field.value = shownConditions(own, kind);
    field.addEventListener("change", () => {
      const others = this.chosen.where.filter((text) => columnOf(text) !== name);
      choose({ where: [...others, ...writtenConditions(name, field.value, kind)], from: null });
    });
    return field;
  }

  /** Return the content of a cell; the head of a row about an attention head opens its card. */
  cell(row, name) {
    const value = row[name];
    if (value === null) return element("span.soft", "–");
    if (name === "head" && "layer" in row && value >= 0) { // head -1 is the embedding
      const circuit = row.circuit ?? (this.name === "noun_values" ? "ov" : null);
      const chosen = { circuit, layer: row.layer, head: value, offset: row.offset };
      const address = addressOf(["runs", this.run.run_id, "heads"], chosen);
      return element("a", { href: address, title: `Card of L${row.layer}H${value}` }, String(value));
    }
    if (typeof value === "string") return textWithSpaces(value);
    return typeof value === "number" && !Number.isInteger(value) ? shortNumber(value) : String(value);
  }
}

/** Return a number with 5 significant digits. */
function shortNumber(value) {
  return element("span", { title: String(value) }, String(Number(value.toPrecision(5))));
}

/** Return a text whose spaces at its start can be seen. */
function textWithSpaces(text) {
  const rest = text.trimStart();
  const spaces = text.slice(0, text.length - rest.length).replaceAll(" ", "␣");
  return rest === text ? text : element("span", { title: "Each ␣ is a space at the start of the text" }, element("span.soft", spaces), rest);
}

function intro() {
  const code = (text) => element("code", text);
  return element("p.soft",
    "The stored tables of this run. The name of a column orders the rows. The field below it selects rows: for numbers ",
    "write a value or a comparison, such as ", code("3"), " or ", code(">0.5"), "; for texts write a part of the text, ",
    code("=text"), " for the whole text, or ", code("!=text"), " for the others. Write a text with a space at its start in quotes: ",
    code('=" the"'), ". Join two conditions on a column by ", code("&"), " with spaces around it.",
  );
}

/** Return what a table has in its rows and columns; nothing about a table that no group has. */
function meaningOf(table) {
  if (!table) return null;
  const unit = ({ units }) => (units === "" || units === "1" ? "" : ` (${units})`);
  return element("details.meaning",
    element("summary", table.description),
    element("dl", table.columns.flatMap((column) => [element("dt", column.name), element("dd", column.description + unit(column))])),
  );
}
