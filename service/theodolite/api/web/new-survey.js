// A form for a new survey: a spec is written as JSON, checked, and sent to the cluster.

import { addressOf } from "./address.js";
import { element } from "./elements.js";
import { send } from "./service.js";

const EXAMPLE = {
  model: { id: "smollm2-135m-instruct" },
  prompts: {
    harmful: { source: "builtin:harmful", limit: 32 },
    harmless: { source: "builtin:harmless", limit: 32 },
  },
  contrasts: { refusal: { positive: "harmful", negative: "harmless", paired: true } },
  analyses: ["curves", "separation"],
};

/** Open the form. */
export function openNewSurvey(node, signal) {
  document.title = "New survey · Theodolite";
  const text = element("textarea", {
    id: "spec-text",
    rows: 22,
    spellcheck: "false",
    autocomplete: "off",
    "aria-describedby": "spec-help",
  });
  text.value = JSON.stringify(EXAMPLE, null, 2);
  const said = element("div", { id: "spec-problem", role: "alert" });
  const answer = element("div", { id: "spec-answer", role: "status" });
  const check = element("button", { type: "button", id: "check-spec" }, "Check");
  const submit = element("button", { type: "submit", id: "submit-spec", class: "main" }, "Submit");

  async function attempt(act) {
    said.replaceChildren();
    answer.replaceChildren();
    text.removeAttribute("aria-invalid");
    check.disabled = submit.disabled = true;
    try {
      await act(readSpec(text.value));
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 422 || error instanceof SpecTextError) text.setAttribute("aria-invalid", "true");
      said.replaceChildren(...words(error));
    } finally {
      check.disabled = submit.disabled = false;
    }
  }

  check.addEventListener("click", async () => {
    await attempt(async (spec) => {
      const { id } = await send("POST", "/v1/spec/check", spec);
      answer.replaceChildren(
        element(
          "p",
          { class: "good" },
          `This is a valid survey, and may be submitted here. Its job is ${id.slice(0, 12)}….`,
        ),
      );
    });
    check.focus();
  });
  const form = element(
    "form",
    { id: "spec-form", novalidate: true },
    element("label", { for: "spec-text" }, "The survey, as JSON"),
    text,
    said,
    answer,
    element("div", { class: "buttons" }, submit, check),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async (spec) => {
      const job = await send("POST", "/v1/jobs", spec);
      if (!signal.aborted) location.hash = addressOf(["jobs", job.id]);
    });
  });
  node.append(
    element("h1", {}, "New survey"),
    element(
      "p",
      { class: "lead", id: "spec-help" },
      "Which model, which sets of prompts, which of them to contrast, and what to measure. The same survey again is the same job, and goes on where it stopped. ",
      element("a", { href: "/v1/spec.schema.json" }, "Every field is described in the schema."),
    ),
    form,
  );
  return null;
}

class SpecTextError extends Error {}

/** Return what a text says; raises SpecTextError in words where it is not JSON. */
function readSpec(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SpecTextError(`The text is not JSON: ${error.message}.`);
  }
}

/** Say a problem; the service lists the fields that are wrong on lines of their own. */
function words(error) {
  const [first, ...rest] = error.message.split("\n").map((line) => line.trim());
  const lines = rest.filter(Boolean).map((line) => element("li", {}, line));
  return [
    element(
      "div",
      { class: "problem" },
      element("p", {}, error.title && element("strong", {}, `${error.title}. `), first),
      lines.length > 0 && element("ul", {}, lines),
    ),
  ];
}
