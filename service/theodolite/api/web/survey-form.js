// The fields of a spec: the model, prompt sets, contrasts and analyses. They show the text, and each change edits it.

import { ContrastRow } from "./contrast-row.js";
import { element, problem } from "./elements.js";
import { labelled, markFields, matchRows, showValue, textField } from "./form-fields.js";
import { PromptSetRow } from "./prompt-set-row.js";
import { ask, readAnalyses } from "./service.js";
import { freeName, listOf, mappingOf, renamed, renamedSet, withPart, withValues } from "./spec-changes.js";

const ALIASES = ["smollm2-135m-instruct", "all-minilm-l6-v2"];

export class SurveyForm {
  /** `edit` changes the spec by a function of the spec. */
  constructor(edit, signal) {
    Object.assign(this, { edit, signal });
    this.sets = new Map();
    this.contrasts = new Map();
    this.boxes = [];
    this.label = textField((name) => edit((spec) => withValues(spec, { name: name || undefined })), { size: 28 });
    const model = { size: 28, list: "known-models", autocapitalize: "off" };
    this.model = textField((id) => edit((spec) => withPart(spec, ["model"], { id })), model);
    this.models = element("datalist", { id: "known-models" });
    this.setList = element("div");
    this.contrastList = element("div");
    this.addSet = element("button", { type: "button", onclick: () => this.newSet() }, "Add a prompt set");
    this.addContrast = element("button", { type: "button", onclick: () => this.newContrast() }, "Add a contrast");
    this.analyses = element("div");
    this.node = element("fieldset", ...this.draw());
    this.readModels();
    this.readAnalyses();
  }

  draw() {
    return [
      element("legend.unseen", "Fields of the spec"),
      element("div.switches", labelled("label (optional)", this.label), labelled("model", this.model), this.models),
      element("h2", "Prompt sets"), this.setList, element("div.buttons", this.addSet),
      element("h2", "Contrasts"),
      element("p.soft.small", "A direction points from the negative to the positive set. In a paired contrast, prompt i of one set matches prompt i of the other. The default: only the built-in sets harmful and harmless are paired, if they select equal prompts."),
      this.contrastList, element("div.buttons", this.addContrast),
      element("h2", "Analyses"),
      element("p.soft.small", "If you select none, the survey computes all analyses that the model and the prompts allow, except probes, effects and words, which must be selected."),
      this.analyses,
    ];
  }

  /** Show a spec in the fields; null means that the text is no spec, so no field can change it. */
  show(spec) {
    this.spec = spec;
    this.node.disabled = spec === null;
    if (spec === null) return;
    showValue(this.label, String(spec.name ?? ""));
    showValue(this.model, String(mappingOf(spec.model).id ?? ""));
    const sets = mappingOf(spec.prompts), contrasts = mappingOf(spec.contrasts);
    matchRows(this.setList, this.sets, sets, (name) => new PromptSetRow(name, {
      edit: this.edit,
      rename: (from, to) => this.rename("prompts", this.sets, from, to),
      remove: (removed) => this.remove("prompts", removed, this.addSet),
      signal: this.signal,
    }));
    matchRows(this.contrastList, this.contrasts, contrasts, (name) => new ContrastRow(name, {
      edit: this.edit,
      rename: (from, to) => this.rename("contrasts", this.contrasts, from, to),
      remove: (removed) => this.remove("contrasts", removed, this.addContrast),
    }));
    for (const row of [...this.sets.values(), ...this.contrasts.values()]) row.show(spec);
    for (const box of this.boxes) box.checked = listOf(spec.analyses).includes(box.value);
  }

  /** Mark the fields that an error's lines name. */
  mark(lines) {
    markFields([], { name: [this.label], "model.id": [this.model] }, lines);
    for (const row of [...this.sets.values(), ...this.contrasts.values()]) row.mark(lines);
  }

  newSet() {
    const name = freeName(mappingOf(this.spec.prompts), "prompts");
    this.edit((spec) => withPart(spec, ["prompts"], { [name]: { source: "inline", texts: [] } }));
    this.sets.get(name).nameInput.select();
  }

  newContrast() {
    const [positive = "", negative = ""] = Object.keys(mappingOf(this.spec.prompts));
    const name = freeName(mappingOf(this.spec.contrasts), "contrast");
    this.edit((spec) => withPart(spec, ["contrasts"], { [name]: { positive, negative } }));
    this.contrasts.get(name).nameInput.select();
  }

  /** Rename a set or a contrast; return why the name is refused, or null. */
  rename(part, rows, from, to) {
    const row = rows.get(from);
    if (to === from || to === "" || Object.hasOwn(this.spec[part], to)) {
      row.nameInput.value = from;
      return to === from ? null : `The name stays ${from}: ${to === "" ? "a name is needed" : `${to} exists already`}.`;
    }
    rows.delete(from);
    rows.set(to, row);
    row.name = to;
    this.edit((spec) =>
      part === "prompts" ? renamedSet(spec, from, to) : { ...spec, contrasts: renamed(spec.contrasts, from, to) });
    return null;
  }

  /** Remove a set or a contrast; the focus goes to the button that adds one. */
  remove(part, name, button) {
    this.edit((spec) => withPart(spec, [part], { [name]: undefined }));
    button.focus();
  }

  async readModels() {
    const { items } = await ask("/v1/runs", { limit: 1000 }, this.signal).catch(() => ({ items: [] }));
    const known = new Set([...ALIASES, ...items.map((run) => run.model).filter(Boolean)]);
    this.models.replaceChildren(...[...known].map((value) => element("option", { value })));
  }

  async readAnalyses() {
    this.analyses.replaceChildren(element("p.soft.waiting", { role: "status" }, "Loading…"));
    try {
      const analyses = (await readAnalyses()).filter((group) => group.is_requestable);
      this.boxes = analyses.map(({ name }) =>
        element("input", { type: "checkbox", value: name, onchange: ({ target }) => this.choose(name, target.checked) }));
      const label = ({ title }, index) => element("label.tick", this.boxes[index], title);
      this.analyses.replaceChildren(element("fieldset.ticks",
        element("legend.unseen", "Analyses"),
        element("div", analyses.map(label)),
      ));
      if (this.spec) this.show(this.spec);
    } catch (error) {
      this.analyses.replaceChildren(problem(error, () => this.readAnalyses()));
    }
  }

  /** Add an analysis, or remove it; without any, the spec has no list of them. */
  choose(name, isChosen) {
    this.edit((spec) => {
      const others = listOf(spec.analyses).filter((one) => one !== name);
      const analyses = isChosen ? [...others, name] : others;
      return withValues(spec, { analyses: analyses.length ? analyses : undefined });
    });
  }
}
