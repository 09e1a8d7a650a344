// The flat tables of a run: rows that pass conditions, in an order, by page, and as files.

import { addressOf, choose } from "./address.js";
import { element, fill, problem, replaceControls, selection, sortHead } from "./elements.js";
import { downloadFile } from "./export.js";
import { ask, ofRun, queryOf, readGroups, request } from "./service.js";

const ROWS = 100;
const AND = " & ";
const FILES = [["Download CSV", "text/csv", "csv"], ["Download Parquet", "application/vnd.apache.parquet", "parquet"]];
const OPERATOR = { number: /^(!=|<=|>=|=|<|>)/, boolean: /^(!=|=)/, text: /^(!=|=|~)/ };

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
    await fill(this.list, signal, () => this.read(choices.get("from"), signal));
  }

  /** Return the rows of the page from a cursor on; after a refused selection the head of the table, to change it. */
  async read(cursor, signal) {
    const path = ofRun(this.run.run_id, "tables", this.name);
    try {
      return this.rows(await ask(path, { ...this.chosen, limit: ROWS, cursor }, signal));
    } catch (error) {
      if (error.status !== 422) throw error;
      const { columns } = await ask(path, { limit: 1 }, signal);
      return [problem(error), ...this.rows({ columns, items: [], total: null, next: null })];
    }
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
      const { name } = this; // the user may choose another table meanwhile
      target.disabled = true;
      try {
        const path = `${ofRun(this.run.run_id, "tables", name)}${queryOf(this.chosen)}`;
        const answer = await request(path, { headers: { Accept: type }, signal: this.signal });
        downloadFile(`${this.run.run_id}.${name}.${ending}`, await answer.blob());
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
    const order = (following) => choose({ order: following, from: null });
    const body = items.map((row) => element("tr", names.map((name) => element("td", { class: kind(name) }, this.cell(row, name)))));
    const caption = `Rows of ${this.name}`;
    return [
      total !== null && element("p.soft", { role: "status" }, `${total.toLocaleString("en")} ${this.chosen.where.length ? "rows pass the conditions" : "rows"}.`),
      element("div.scroll", { tabindex: 0, role: "region", "aria-label": caption },
        element("table.browsed",
          element("caption.unseen", caption),
          element("thead",
            element("tr", names.map((name) => sortHead(name, name, this.chosen.order, isNumber(name), order))),
            element("tr", names.map((name) => element("td", this.filter(name, columns[name])))),
          ),
          element("tbody", body),
        ),
      ),
      next && element("div.buttons", element("button", { type: "button", onclick: () => choose({ from: next }) }, "Next page")),
    ];
  }

  /** Return the field of a column's condition: an operator and a value, or a value alone. */
  filter(name, kind) {
    const own = this.chosen.where.filter((text) => columnOf(text) === name);
    const field = element("input", {
      id: `where-${name}`,
      type: "search",
      autocomplete: "off",
      maxlength: 200,
      "aria-label": `Condition on ${name}`,
      placeholder: { number: "= < > …", boolean: "true", text: "contains" }[kind],
    });
    field.value = own.map((text) => shortOf(text, name, kind)).join(AND);
    field.addEventListener("change", () => {
      const others = this.chosen.where.filter((text) => columnOf(text) !== name);
      const added = partsOf(field.value).map((part) => conditionOf(name, part, kind));
      choose({ where: [...others, ...added], from: null });
    });
    return field;
  }

  /** Return the content of a cell; the head of a row about an attention head opens its card. */
  cell(row, name) {
    const value = row[name];
    if (value === null) return element("span.soft", "–");
    if (name === "head" && "layer" in row && row.layer >= 0 && value >= 0) {
      const circuit = row.circuit ?? (this.name === "noun_values" ? "vo" : null);
      const chosen = { circuit, offset: row.offset, layer: row.layer, head: value };
      const address = addressOf(["runs", this.run.run_id, "heads"], chosen);
      return element("a", { href: address, title: `Card of L${row.layer}H${value}` }, String(value));
    }
    if (typeof value === "string" && value.startsWith(" ")) return spaced(value);
    return typeof value === "number" && !Number.isInteger(value) ? shortNumber(value) : String(value);
  }
}

/** Return a number with 5 significant digits. */
function shortNumber(value) {
  return element("span", { title: String(value) }, String(Number(value.toPrecision(5))));
}

/** Return a text whose spaces at the beginning can be seen; copied text has them as they are. */
function spaced(text) {
  const rest = text.trimStart();
  const marks = element("span.soft", { "aria-hidden": "true", title: "space" }, "␣".repeat(text.length - rest.length));
  return element("span", element("span.unseen", "space "), marks, rest);
}

/** Return the column of a condition. */
function columnOf(condition) {
  return condition.match(/^\s*(\w+)/)?.[1];
}

/** Return the conditions in a field; text between quotation marks may contain the word that joins them. */
function partsOf(text) {
  const joint = / & (?=(?:[^"]*"[^"]*")*[^"]*$)/; // followed by an even number of quotation marks
  return text.split(joint).map((part) => part.trim()).filter(Boolean);
}

/** Return a condition from what a user typed in the field of a column. */
function conditionOf(name, typed, kind) {
  return `${name}${OPERATOR[kind].test(typed) ? "" : kind === "text" ? "~" : "="}${typed}`;
}

/** Return the short form of a condition for the field of its column: `conditionOf` returns the condition again. */
function shortOf(condition, name, kind) {
  const rest = condition.trim().slice(name.length).trim();
  const short = rest.slice(1).trim();
  const isUsual = rest.startsWith(kind === "text" ? "~" : "=");
  return isUsual && short && !OPERATOR[kind].test(short) ? short : rest;
}

function intro() {
  return element("p.soft",
    "The stored tables of this run. The name of a column orders the rows. The field below it selects rows: for numbers ",
    "write a value or a comparison, such as ", element("code", "3"), " or ", element("code", ">0.5"), "; for texts write a part of the text, or ",
    element("code", "=text"), " for the whole text. Quotation marks keep spaces: ", element("code", '=" king"'), ". Join two conditions on a column by ", element("code", AND), " with spaces around it.",
  );
}
