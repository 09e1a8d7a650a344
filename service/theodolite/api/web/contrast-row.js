// The fields of one contrast: its name, its two prompt sets, and whether their prompts are pairs.

import { element } from "./elements.js";
import { choiceField, labelled, markFields, markName, nameField, showChoice, showValue } from "./form-fields.js";
import { countOf, precisionOf } from "./precision.js";
import { mappingOf, withPart } from "./spec-changes.js";

const PAIRED = [["", "default"], ["true", "yes"], ["false", "no"]];

export class ContrastRow {
  /** The arguments are those of a PromptSetRow. */
  constructor(name, { edit, rename, remove }) {
    Object.assign(this, { name, edit });
    this.nameInput = nameField((to) => this.say(rename(this.name, to)));
    this.positive = choiceField((positive) => this.change({ positive }));
    this.negative = choiceField((negative) => this.change({ negative }));
    this.paired = choiceField((paired) => this.change({ paired: paired === "" ? undefined : paired === "true" }));
    this.remove = element("button.quiet", { type: "button", onclick: () => remove(this.name) }, "Remove");
    this.legend = element("legend.unseen");
    this.note = element("div.small", { "aria-live": "polite" });
    this.precision = element("p.soft.small.precision");
    this.node = element("fieldset.row", this.legend,
      element("div",
        element("div.switches",
          labelled("name", this.nameInput),
          labelled("positive set", this.positive),
          labelled("negative set", this.negative),
          labelled("paired", this.paired),
        ),
        this.remove,
      ),
      this.precision,
      this.note,
    );
  }

  show(spec) {
    const { positive, negative, paired } = mappingOf(spec.contrasts[this.name]);
    const sets = Object.keys(mappingOf(spec.prompts)).map((set) => [set, set]);
    this.legend.textContent = `Contrast ${this.name}`;
    this.remove.setAttribute("aria-label", `Remove contrast ${this.name}`);
    showValue(this.nameInput, this.name);
    showChoice(this.positive, sets, String(positive ?? ""));
    showChoice(this.negative, sets, String(negative ?? ""));
    showChoice(this.paired, PAIRED, String(paired ?? ""));
    this.precision.textContent = precisionOf(countOf(spec, positive), countOf(spec, negative));
  }

  mark(lines) {
    const fields = { positive: [this.positive], negative: [this.negative], paired: [this.paired] };
    markFields(["contrasts", this.name], fields, lines);
    markName(["contrasts", this.name], this.nameInput, lines);
  }

  change(values) {
    this.edit((spec) => withPart(spec, ["contrasts", this.name], values));
  }

  say(message) {
    this.note.replaceChildren(...(message ? [element("p.warn", message)] : []));
  }
}
