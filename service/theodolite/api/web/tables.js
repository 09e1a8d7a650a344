// The flat tables of a run: rows that pass conditions, in an order, by page, and as files.

import { addressOf, choose, readAddress } from "./address.js";
import { element, fill, problem, replaceControls, selection } from "./elements.js";
import { downloadFile } from "./export.js";
import { ask, ofRun, queryOf, readGroups, request } from "./service.js";

const ROWS = 100;
const AND = " & ";
const FILES = [["Download CSV", "text/csv", "csv"], ["Download Parquet", "application/vnd.apache.parquet", "parquet"]];
const HEADS = ["head_tokens", "noun_keys", "noun_values", "noun_alignment", "noun_offsets", "noun_scores", "bias_tokens"];

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
    this.nodes = [element("h2", "Tables"), intro(), this.switches, this.message, this.list];
  }

  async show(choices) {
    this.pending?.abort(); // a slow answer to an earlier choice must not replace this one
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    this.name = choices.get("table") ?? this.run.tables[0];
    this.chosen = { where: choices.getAll("where"), order: choices.get("order") };
    const groups = await readGroups().catch(() => []);
    if (signal.aborted) return;
    this.redrawSwitches(groups, choices);
    this.message.replaceChildren();
    await fill(this.list, signal, async () => {
      const parameters = { ...this.chosen, limit: ROWS, cursor: choices.get("from") };
      return this.rows(await ask(ofRun(this.run.run_id, "tables", this.name), parameters, signal));
    });
  }

  redrawSwitches(groups, choices) {
    const owned = groups.map(({ title, name, tables }) => {
      const own = [...tables, name].filter((table, index, all) => this.run.tables.includes(table) && all.indexOf(table) === index);
      return { label: title, options: own };
    });
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
      target.disabled = true;
      try {
        const path = `${ofRun(this.run.run_id, "tables", this.name)}${queryOf(this.chosen)}`;
        const answer = await request(path, { headers: { Accept: type }, signal: this.signal });
        downloadFile(`${this.run.run_id}.${this.name}.${ending}`, await answer.blob());
        this.message.replaceChildren();
      } catch (error) {
        this.message.replaceChildren(problem(error));
      }
      target.disabled = false;
    };
    const title = "All rows that pass the conditions, in this order";
    return element("button", { type: "button", id: `tables-${ending}`, title, onclick: get }, text);
  }

  rows({ columns, items, total, next }) {
    const names = Object.keys(columns);
    const isNumber = (name) => columns[name] === "number";
    const kind = (name) => (isNumber(name) ? "number" : null);
    const count = total.toLocaleString("en");
    const body = items.map((row) => element("tr", names.map((name) => element("td", { class: kind(name) }, this.cell(row, name)))));
    const caption = `Rows of ${this.name}`;
    return [
      element("p.soft", { role: "status" }, `${count} ${this.chosen.where.length ? "rows pass the conditions" : "rows"}.`),
      element("div.scroll", { tabindex: 0, role: "region", "aria-label": caption },
        element("table.browsed",
          element("caption.unseen", caption),
          element("thead",
            element("tr", names.map((name) => this.head(name, kind(name)))),
            element("tr", names.map((name) => element("td", this.filter(name, isNumber(name))))),
          ),
          element("tbody", body),
        ),
      ),
      next && element("div.buttons", element("button", { type: "button", onclick: () => choose({ from: next }) }, "Next page")),
    ];
  }

  /** Return the head of a column; its button orders the rows, in the other direction at the second time. */
  head(name, kind) {
    const { order } = this.chosen;
    const isUp = order === name, isDown = order === `-${name}`;
    const sorted = isUp ? "ascending" : isDown ? "descending" : null;
    const following = isUp ? `-${name}` : isDown ? null : name;
    const button = element("button.quiet", { type: "button", id: `order-${name}`, onclick: () => choose({ order: following, from: null }) },
      name, element("span", { "aria-hidden": "true" }, isUp ? " ▲" : isDown ? " ▼" : ""));
    return element("th", { scope: "col", class: kind, "aria-sort": sorted }, button);
  }

  /** Return the field of a column's condition: an operator and a value, or a value alone. */
  filter(name, isNumber) {
    const own = this.chosen.where.filter((text) => columnOf(text) === name);
    const field = element("input", {
      id: `where-${name}`,
      type: "search",
      autocomplete: "off",
      maxlength: 200,
      "aria-label": `Condition on ${name}`,
      placeholder: isNumber ? "= < > …" : "contains",
    });
    field.value = own.map((text) => shortOf(text, name, isNumber)).join(AND);
    field.addEventListener("change", () => {
      const others = this.chosen.where.filter((text) => columnOf(text) !== name);
      const added = field.value.split(AND).map((part) => part.trim()).filter(Boolean);
      choose({ where: [...others, ...added.map((part) => conditionOf(name, part, isNumber))], from: null });
    });
    return field;
  }

  /** Return the content of a cell; the head of a row about an attention head opens its card. */
  cell(row, name) {
    const value = row[name];
    if (value === null) return element("span.soft", "–");
    if (name === "head" && HEADS.includes(this.name) && "layer" in row) {
      const circuit = row.circuit ?? (this.name === "noun_values" ? "vo" : null);
      const chosen = { circuit, layer: row.layer, head: value };
      const address = addressOf(["runs", this.run.run_id, "heads"], chosen);
      return element("a", { href: address, title: `Card of L${row.layer}H${value}` }, String(value));
    }
    return typeof value === "number" && !Number.isInteger(value) ? shortNumber(value) : String(value);
  }
}

/** Return a number with 5 significant digits. */
function shortNumber(value) {
  return element("span", { title: String(value) }, String(Number(value.toPrecision(5))));
}

/** Return the column of a condition. */
function columnOf(condition) {
  return condition.match(/^\s*(\w+)/)?.[1];
}

/** Return a condition from what a user typed in the field of a column. */
function conditionOf(name, typed, isNumber) {
  const hasOperator = /^(!=|<=|>=|=|<|>|~)/.test(typed);
  return `${name}${hasOperator ? "" : isNumber ? "=" : "~"}${typed}`;
}

/** Return the short form of a condition for the field of its column. */
function shortOf(condition, name, isNumber) {
  const rest = condition.trim().slice(name.length).trim();
  return rest.startsWith(isNumber ? "=" : "~") ? rest.slice(1) : rest;
}

function intro() {
  return element("p.soft",
    "The stored tables of this run. The name of a column orders the rows. The field below it selects rows: for numbers ",
    "write a value or a comparison, such as ", element("code", "3"), " or ", element("code", ">0.5"), "; for texts write a part of the text, or ",
    element("code", "=text"), " for the whole text. Join two conditions on a column by ", element("code", AND), " with spaces around it.",
  );
}
