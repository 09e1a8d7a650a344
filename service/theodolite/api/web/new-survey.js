// A form for a new survey: the user writes a spec as JSON, checks it, and submits it to the cluster.

import { addressOf } from "./address.js";
import { element } from "./elements.js";
import { send } from "./service.js";

const EXAMPLE = {
  model: { id: "smollm2-135m-instruct" },
  prompts: { harmful: { source: "builtin:harmful", limit: 32 }, harmless: { source: "builtin:harmless", limit: 32 } },
  contrasts: { refusal: { positive: "harmful", negative: "harmless", paired: true } },
  analyses: ["curves", "separation"],
};

/** Open the form. */
export function openNewSurvey(node, signal) {
  document.title = "New survey · Theodolite";
  const help = { spellcheck: "false", autocomplete: "off", "aria-describedby": "spec-help" };
  const text = element("textarea", { id: "spec-text", rows: 22, ...help });
  text.value = JSON.stringify(EXAMPLE, null, 2);
  const message = element("div", { id: "spec-problem", role: "alert" });
  const answer = element("div", { id: "spec-answer", role: "status" });
  const check = element("button", { type: "button", id: "check-spec" }, "Check");
  const submit = element("button.main", { type: "submit", id: "submit-spec" }, "Submit");

  async function attempt(act) {
    message.replaceChildren();
    answer.replaceChildren();
    text.removeAttribute("aria-invalid");
    check.disabled = submit.disabled = true;
    try {
      await act(readSpec(text.value));
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 422 || error instanceof SpecTextError) text.setAttribute("aria-invalid", "true");
      message.replaceChildren(errorMessage(error));
    } finally {
      check.disabled = submit.disabled = false;
    }
  }

  check.addEventListener("click", async () => {
    await attempt(async (spec) => {
      const { id } = await send("POST", "/v1/spec/check", spec);
      const valid = "This is a valid survey spec, and this service accepts it.";
      answer.replaceChildren(element("p.good", `${valid} The id of its survey job is ${id.slice(0, 12)}….`));
    });
    check.focus();
  });
  const form = element("form", { id: "spec-form", novalidate: true },
    element("label", { for: "spec-text" }, "Spec of the survey, as JSON"),
    text,
    message,
    answer,
    element("div.buttons", submit, check),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async (spec) => {
      const job = await send("POST", "/v1/jobs", spec);
      if (!signal.aborted) location.hash = addressOf(["jobs", job.id]);
    });
  });
  node.append(
    element("h1", "New survey"),
    element("p.lead", { id: "spec-help" },
      "A spec names the model, the prompt sets, the contrasts and the analyses. The same spec always gives the same survey job, which continues where it stopped. ",
      element("a", { href: "/v1/spec.schema.json" }, "The schema describes every field."),
    ),
    form,
  );
}

class SpecTextError extends Error {}

/** Return the value of a JSON text; throws SpecTextError if the text is not JSON. */
function readSpec(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SpecTextError(`The text is not JSON: ${error.message}.`);
  }
}

/** Return the message of an error; the service lists each wrong field on its own line. */
function errorMessage(error) {
  const [first, ...rest] = error.message.split("\n").map((line) => line.trim());
  const lines = rest.filter(Boolean).map((line) => element("li", line));
  return element("div.problem",
    element("p", error.title && element("strong", `${error.title}. `), first),
    lines.length > 0 && element("ul", lines),
  );
}
