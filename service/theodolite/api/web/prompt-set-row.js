// The fields of one prompt set: its name, its source, and the selection of its prompts.

import { element } from "./elements.js";
import { choiceField, labelled, markFields, markName, nameField, showChoice, showValue, textField } from "./form-fields.js";
import { sendBody } from "./service.js";
import { linesOf, listOf, mappingOf, partsOfSource, promptsOf, withPart } from "./spec-changes.js";

const KINDS = [
  ["builtin", "built in"],
  ["inline", "typed here"],
  ["upload", "uploaded file"],
  ["hub", "hub dataset"],
  ["file", "cluster file"],
];
const BUILTIN = ["harmful", "harmless", "everyday", "nouns"];
const FILE_TYPES = ["csv", "tsv", "jsonl", "ndjson", "json", "txt", "parquet"]; // all but parquet also with .gz
const ADDRESSES = { hub: "dataset, OWNER/NAME", file: "absolute path" };

/** What a set of a kind contains before the user fills it. */
const STARTS = {
  builtin: { source: "builtin:harmful" },
  inline: { source: "inline", texts: [] },
  upload: { source: "upload:" },
  hub: { source: "hub:" },
  file: { source: "file:" },
};

/** The names of the files that this page uploaded, by source; a spec has only their digests. */
const uploadedFiles = new Map();

export class PromptSetRow {
  /**
   * `edit` changes the spec by a function; `rename` gets the old and the new name and returns why it refuses, or null;
   * `remove` gets the name.
   */
  constructor(name, { edit, rename, remove, signal }) {
    Object.assign(this, { name, edit, signal });
    this.sources = {}; // what the user filled in for each kind, while another kind is chosen
    this.nameInput = nameField((to) => this.say(rename(this.name, to)));
    this.kind = choiceField((kind) => this.chooseKind(kind));
    this.builtin = choiceField((set) => this.change({ source: `builtin:${set}` }));
    this.address = textField((address) => this.change({ source: `${this.kind.value}:${address.trim()}` }), { size: 20 });
    this.column = textField((column) => this.change({ column: column || undefined }), { size: 10 });
    const positive = { type: "number", min: 1, step: 1, placeholder: "all" };
    this.limit = textField((limit) => this.change({ limit: limit === "" ? undefined : Number(limit) }), positive);
    this.texts = element("textarea", { rows: 6, spellcheck: "false" });
    this.texts.addEventListener("input", () => this.change({ texts: promptsOf(this.texts.value) }));
    this.file = element("input", { type: "file", hidden: true, accept: [...FILE_TYPES, "gz"].map((type) => `.${type}`).join() });
    this.file.addEventListener("change", () => this.upload(this.file.files[0]));
    this.chooser = element("button", { type: "button", onclick: () => this.file.click() }, "Choose a file");
    this.note = element("div.small", { "aria-live": "polite" });
    this.legend = element("legend.unseen");
    this.remove = element("button.quiet", { type: "button", onclick: () => remove(this.name) }, "Remove");
    this.node = this.draw();
  }

  draw() {
    this.fileName = element("span.soft.small");
    this.parts = {
      builtin: labelled("set", this.builtin),
      address: labelled("", this.address),
      upload: element("div.buttons", this.chooser, this.file, this.fileName),
      column: labelled("column", this.column),
      texts: labelled("prompts, one in each line", this.texts),
    };
    const { builtin, address, upload, column, texts } = this.parts;
    return element("fieldset.row", this.legend,
      element("div",
        element("div.switches",
          labelled("name", this.nameInput),
          labelled("source", this.kind),
          builtin, address, upload, column,
          labelled("limit", this.limit),
        ),
        this.remove,
      ),
      texts,
      this.note,
    );
  }

  /** Show the set of a spec. */
  show(spec) {
    const { source, texts, column, limit } = mappingOf(spec.prompts[this.name]);
    const [kind, rest] = partsOfSource(source);
    this.legend.textContent = `Prompt set ${this.name}`;
    this.remove.setAttribute("aria-label", `Remove prompt set ${this.name}`);
    this.chooser.setAttribute("aria-label", `Choose a file of prompts for ${this.name}`);
    showValue(this.nameInput, this.name);
    showChoice(this.kind, KINDS, kind);
    showChoice(this.builtin, BUILTIN.map((set) => [set, set]), kind === "builtin" ? rest : BUILTIN[0]);
    showValue(this.address, rest);
    this.address.previousSibling.textContent = ADDRESSES[kind] ?? "";
    showValue(this.column, String(column ?? ""));
    showValue(this.limit, typeof limit === "number" ? String(limit) : "");
    this.fileName.textContent = kind === "upload" ? uploadedFiles.get(source) ?? describeUpload(rest) : "";
    this.showTexts(listOf(texts));
    const shown = { builtin: ["builtin"], inline: ["texts"], upload: ["upload", "column"] }[kind];
    for (const [name, part] of Object.entries(this.parts)) part.hidden = !(shown ?? ["address", "column"]).includes(name);
    if (!(kind in STARTS)) this.parts.address.hidden = true; // a source that only the text can change
  }

  showTexts(texts) {
    const lines = linesOf(texts);
    this.texts.readOnly = lines === null;
    const change = "prompts, some of them with line breaks or several messages: change them in the spec";
    this.texts.previousSibling.textContent = lines === null ? change : "prompts, one in each line";
    const isSame = document.activeElement === this.texts && lines !== null;
    const shown = texts.map((prompt) => (typeof prompt === "string" ? prompt : JSON.stringify(prompt)));
    if (!isSame) showValue(this.texts, lines ?? shown.join("\n"));
  }

  /** Mark the fields that an error's lines name. */
  mark(lines) {
    const source = [this.kind, this.builtin, this.address];
    const fields = { source, texts: [this.texts], column: [this.column], limit: [this.limit] };
    markFields(["prompts", this.name], fields, lines);
    markName(["prompts", this.name], this.nameInput, lines);
  }

  change(values) {
    this.edit((spec) => withPart(spec, ["prompts", this.name], values));
  }

  chooseKind(kind) {
    this.say(null);
    this.edit((spec) => {
      const { source, texts, column } = mappingOf(mappingOf(spec.prompts)[this.name]);
      this.sources[partsOfSource(source)[0]] = { source, texts, column };
      const values = { texts: undefined, column: undefined, ...(this.sources[kind] ?? STARTS[kind]) };
      return withPart(spec, ["prompts", this.name], values);
    });
  }

  async upload(file) {
    this.file.value = "";
    if (!file) return;
    this.note.replaceChildren(element("p.soft.waiting", `Uploading ${file.name}…`));
    try {
      const type = file.name.toLowerCase().match(/[^.]*(\.gz)?$/)[0];
      const { source, bytes } = await sendBody("POST", `/v1/uploads?type=${encodeURIComponent(type)}`, file,
        "application/octet-stream", { signal: this.signal });
      uploadedFiles.set(source, `${file.name}, ${bytes.toLocaleString("en")} bytes`);
      if (!this.node.isConnected) return; // the set was removed
      this.say(null);
      this.change({ source });
    } catch (error) {
      if (!this.signal.aborted) this.say(`${file.name} is not uploaded: ${error.message}`);
    }
  }

  say(message) {
    this.note.replaceChildren(...(message ? [element("p.warn", message)] : []));
  }
}

function describeUpload(name) {
  return name ? `file ${name.slice(0, 8)}…${name.slice(name.indexOf("."))}` : "no file yet";
}
