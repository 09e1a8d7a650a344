// A new survey: fields and the JSON text of the spec, which both change the other; the service checks each change.

import { addressOf } from "./address.js";
import { element } from "./elements.js";
import { errorMessage, linesOf, LiveCheck } from "./live-check.js";
import { sendBody } from "./service.js";
import { EXAMPLE, readSpec, SpecTextError, writeSpec } from "./spec-text.js";
import { SurveyForm } from "./survey-form.js";

const KEY = "theodolite-spec"; // this browser tab stores the text until the survey is submitted

/** Open the form. */
export function openNewSurvey(node, signal) {
  document.title = "New survey · Theodolite";
  const view = new NewSurvey(signal);
  node.append(
    element("h1", "New survey"),
    element("p.lead",
      "A survey captures a model’s activations on prompt sets, and measures their geometry. The same spec always gives the same survey job, which continues where it stopped. The spec has more options than the fields: ",
      element("a", { href: "/v1/spec.schema.json" }, "the schema describes all of them."),
    ),
    view.node,
  );
  view.show(sessionStorage.getItem(KEY) ?? writeSpec(EXAMPLE), 0);
}

class NewSurvey {
  constructor(signal) {
    this.signal = signal;
    this.form = new SurveyForm((change) => this.edit(change), signal);
    this.text = element("textarea", { id: "spec-text", rows: 20, spellcheck: "false", autocomplete: "off" });
    this.text.addEventListener("input", () => this.changed());
    this.submitButton = element("button.main", { type: "button", id: "submit-spec", onclick: () => this.submit() }, "Submit");
    const again = element("button", { type: "button", onclick: () => this.startAgain() }, "Start again");
    this.backButton = element("button", { type: "button", hidden: true, onclick: () => this.show(this.before) }, "Undo “Start again”");
    this.problem = element("div", { id: "spec-problem", role: "alert" });
    this.answer = element("div", { id: "spec-answer", role: "status" });
    this.check = new LiveCheck(this.answer, (error) => this.mark(error), signal);
    this.node = element("form.survey", { onsubmit: (event) => event.preventDefault() },
      this.form.node,
      element("div.spec",
        element("label", { for: "spec-text" }, "Spec of the survey, as JSON"),
        this.text,
        element("div.buttons", this.submitButton, again, this.backButton),
        this.problem,
        this.answer,
      ),
    );
  }

  /** Change the spec in the text; the text has other formatting afterwards. */
  edit(change) {
    this.text.value = writeSpec(change(readSpec(this.text.value)));
    this.changed();
  }

  /** Show a text, and check it after some milliseconds. */
  show(text, milliseconds) {
    this.text.value = text;
    this.changed(milliseconds);
  }

  changed(milliseconds) {
    const text = this.text.value;
    store(text);
    this.form.show(specOf(text));
    this.problem.replaceChildren();
    this.backButton.hidden = true;
    this.check.soon(text, milliseconds);
  }

  startAgain() {
    this.before = this.text.value;
    this.show(writeSpec(EXAMPLE));
    this.backButton.hidden = false;
  }

  /** Mark the fields that an error names, and the text if the error is about the spec. */
  mark(error) {
    this.form.mark(error ? linesOf(error) : []);
    const isWrong = error instanceof SpecTextError || [413, 422].includes(error?.status);
    if (isWrong) this.text.setAttribute("aria-invalid", "true");
    else this.text.removeAttribute("aria-invalid");
  }

  async submit() {
    this.check.stop();
    this.problem.replaceChildren();
    this.submitButton.disabled = true;
    try {
      readSpec(this.text.value);
      const job = await sendBody("POST", "/v1/jobs", this.text.value, "application/json");
      sessionStorage.removeItem(KEY);
      if (!this.signal.aborted) location.hash = addressOf(["jobs", job.id]);
    } catch (error) {
      if (this.signal.aborted) return;
      this.answer.replaceChildren();
      this.mark(error);
      this.problem.replaceChildren(errorMessage(error));
    } finally {
      this.submitButton.disabled = false;
    }
  }
}

function specOf(text) {
  try {
    return readSpec(text);
  } catch {
    return null;
  }
}

function store(text) {
  try {
    sessionStorage.setItem(KEY, text);
  } catch {
    // The text is longer than the browser stores; the service refuses a spec of this length too.
  }
}
