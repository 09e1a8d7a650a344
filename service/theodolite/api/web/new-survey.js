// A new survey: fields and the text of the spec, which both change the other; the service checks each change.

import { addressOf } from "./address.js";
import { copyFrom, element } from "./elements.js";
import { showEstimate } from "./estimate.js";
import { errorMessage, linesOf, LiveCheck, readSpec } from "./live-check.js";
import { send } from "./service.js";
import { EXAMPLE } from "./spec-changes.js";
import { SurveyForm } from "./survey-form.js";
import { writeYaml } from "./yaml-text.js";

const KEY = "theodolite-spec"; // this browser tab stores the text until the survey is submitted
const FORMATS = { YAML: writeYaml, JSON: (spec) => JSON.stringify(spec, null, 2) };
const LONGEST_YAML = 100_000; // in characters; the service reads longer texts only as JSON
const [SUBMIT, COPY] = ["Submit", "Copy command"]; // the second one without a cluster
const FORMAT_KEY = "theodolite-spec-format";

/** Open the form. */
export function openNewSurvey(node, signal) {
  document.title = "New survey · Theodolite";
  const view = new NewSurvey(signal);
  node.append(
    element("h1", "New survey"),
    element("p.lead",
      "A survey measures the geometry of a model’s activations on prompt sets. The same spec is always the same survey job. ",
      element("a", { href: "/v1/spec.schema.json" }, "All options of a spec"),
    ),
    view.node,
  );
  const stored = sessionStorage.getItem(KEY);
  if (stored === null) view.write(EXAMPLE);
  else view.show(stored, 0);
}

class NewSurvey {
  constructor(signal) {
    this.signal = signal;
    this.form = new SurveyForm((change) => this.edit(change), signal);
    this.spec = null; // that of the text; null while it is unknown
    this.text = element("textarea", { id: "spec-text", rows: 20, spellcheck: "false", autocomplete: "off" });
    this.text.addEventListener("input", () => this.show(this.text.value));
    const formats = Object.keys(FORMATS).map((name) => element("option", name));
    this.format = element("select", { "aria-label": "format of the spec", onchange: () => this.reformat() }, formats);
    this.format.value = sessionStorage.getItem(FORMAT_KEY) ?? "YAML";
    this.submitButton = element("button.main", { type: "button", id: "submit-spec", onclick: () => (this.hasCluster ? this.submit() : this.copyCommand()) }, SUBMIT);
    this.hasCluster = true; // until a check says that this service has none
    this.estimateButton = element("button", { type: "button", hidden: true, onclick: () => this.estimate() }, "Estimate the cost");
    const again = element("button", { type: "button", onclick: () => this.startAgain() }, "Start again");
    this.backButton = element("button", { type: "button", hidden: true, onclick: () => this.undo() }, "Undo “Start again”");
    this.problem = element("div", { id: "spec-problem", role: "alert" });
    this.answer = element("div", { id: "spec-answer", role: "status" });
    this.costs = element("div", { "aria-live": "polite" });
    this.check = new LiveCheck((spec) => this.fill(spec), this.answer, (...result) => this.mark(...result), signal);
    this.node = element("form.survey", { onsubmit: (event) => event.preventDefault() },
      this.form.node,
      element("div.spec",
        element("p.soft", element("label", { for: "spec-text" }, "Spec of the survey"), ", as ", this.format),
        this.text,
        element("div.buttons", this.submitButton, this.estimateButton, again, this.backButton),
        this.problem,
        this.answer,
        this.costs,
      ),
    );
  }

  /** Change the spec by a function of it; throws an error if the text is no spec now. */
  edit(change) {
    if (!this.spec) throw new Error("The text of the spec cannot be read now. Correct it, and try again.");
    this.write(change(this.spec));
  }

  /** Write a spec as the text, without the comments that it had. */
  write(spec) {
    const text = FORMATS[this.format.value](spec);
    if (text.length > LONGEST_YAML) this.format.value = "JSON";
    this.show(text.length > LONGEST_YAML ? FORMATS.JSON(spec) : text, undefined, spec);
  }

  /** Write the text again in the chosen format. */
  reformat() {
    store(FORMAT_KEY, this.format.value);
    this.write(this.spec);
  }

  /** Show a text, and read and check it after some milliseconds; the fields wait for its spec if it is not given. */
  show(text, milliseconds, spec = null) {
    if (this.text.value !== text) this.text.value = text;
    store(KEY, text);
    this.fill(spec);
    this.problem.replaceChildren();
    this.estimating?.abort();
    this.costs.replaceChildren();
    this.backButton.hidden = true;
    this.check.soon(text, milliseconds, spec);
  }

  /** Show the spec of the text in the fields; without one, they change nothing. */
  fill(spec) {
    this.spec = spec;
    this.format.disabled = spec === null;
    this.form.show(spec);
  }

  startAgain() {
    const before = this.backButton.hidden ? this.text.value : this.before;
    this.write(EXAMPLE);
    this.before = before;
    this.backButton.hidden = false;
  }

  undo() {
    this.show(this.before, 0);
    this.text.focus();
  }

  /** Show the estimated cost of the survey; the next change of the text removes it. */
  estimate() {
    this.estimating?.abort();
    this.estimating = new AbortController();
    showEstimate(this.costs, () => this.readText(), AbortSignal.any([this.signal, this.estimating.signal]));
  }

  /** Mark the fields that an error names, and the text if the error is about the spec. */
  mark(error, isAccepted = false) {
    this.estimateButton.hidden = !isAccepted;
    if (!error) this.hasCluster = isAccepted;
    this.submitButton.textContent = this.submitLabel;
    this.form.mark(error ? linesOf(error) : []);
    const isWrong = [413, 422].includes(error?.status);
    if (isWrong) this.text.setAttribute("aria-invalid", "true");
    else this.text.removeAttribute("aria-invalid");
  }

  async readText() {
    return this.spec ?? readSpec(this.text.value);
  }

  /** Copy a shell command that surveys the spec where the user runs it. */
  copyCommand() {
    const file = `survey.${this.format.value.toLowerCase()}`;
    const command = `cat > ${file} <<'END'\n${this.text.value.trimEnd()}\nEND\ntheodolite survey ${file}\n`;
    return copyFrom(this.submitButton, command, () => this.submitLabel);
  }

  get submitLabel() {
    return this.hasCluster ? SUBMIT : COPY;
  }

  async submit() {
    this.check.stop();
    this.problem.replaceChildren();
    this.submitButton.disabled = true;
    try {
      const job = await send("POST", "/v1/jobs", await this.readText());
      sessionStorage.removeItem(KEY);
      if (!this.signal.aborted) location.hash = addressOf(["jobs", job.id]);
    } catch (error) {
      if (this.signal.aborted) return;
      this.problem.replaceChildren(errorMessage(error));
      this.check.soon(this.text.value, 0, this.spec);
    } finally {
      this.submitButton.disabled = false;
    }
  }
}

function store(key, text) {
  try {
    sessionStorage.setItem(key, text);
  } catch {
    // The text is longer than the browser stores; the service refuses a spec of this length too.
  }
}
