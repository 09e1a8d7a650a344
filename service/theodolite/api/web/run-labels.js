// The labels of a run: its name, tags and remarks, which the user can change, and the removal of the run.

import { element, problem } from "./elements.js";
import { ofRun, request } from "./service.js";

/** Return the tags and remarks of a run, with buttons that change them and that delete the run. */
export function labelsOf(run, signal) {
  const node = element("div.labels");
  show(node, run, signal);
  return node;
}

function show(node, run, signal) {
  const tags = run.tags.map((tag) => element("li.tag", tag));
  const edit = element("button.quiet", { type: "button", id: "edit-labels", onclick: () => change(node, run, signal) }, "Name, tags and remarks");
  const remove = element("button.quiet", { type: "button", id: "remove-run", onclick: () => askToRemove(node, run, signal) }, "Delete…");
  node.replaceChildren(
    element("div.buttons", tags.length > 0 && element("ul.tags", { "aria-label": "Tags" }, tags), edit, remove),
    ...(run.remarks ? [element("p.remarks", run.remarks)] : []),
  );
}

/** Replace the labels by a form. */
function change(node, run, signal) {
  const field = (name, label, control) => element("p.field", element("label", { for: `label-${name}` }, label), control);
  const name = element("input", { id: "label-name", maxlength: 200, autocomplete: "off", placeholder: run.spec.name ?? "" });
  const tags = element("input", { id: "label-tags", maxlength: 1000, autocomplete: "off" });
  const remarks = element("textarea", { id: "label-remarks", maxlength: 10000, rows: 4 });
  name.value = run.name === run.spec.name ? "" : (run.name ?? "");
  tags.value = run.tags.join(", ");
  remarks.value = run.remarks;
  const message = element("div", { "aria-live": "polite" });
  const back = (labels) => {
    show(node, { ...run, ...labels }, signal);
    document.getElementById("edit-labels").focus();
  };
  const save = async (event) => {
    event.preventDefault();
    const body = JSON.stringify({
      name: name.value.trim() || null,
      tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean),
      remarks: remarks.value,
    });
    try {
      const headers = { "Content-Type": "application/json" };
      const answer = await request(ofRun(run.run_id), { method: "PATCH", headers, body, signal });
      const labels = await answer.json();
      back({ ...labels, name: labels.name ?? run.spec.name ?? null });
      document.dispatchEvent(new CustomEvent("runs-changed"));
    } catch (error) {
      if (!signal.aborted) message.replaceChildren(problem(error));
    }
  };
  const cancel = element("button", { type: "button", onclick: () => back({}) }, "Cancel");
  const form = element("form.labels-form", { onsubmit: save },
    field("name", "Name", name),
    field("tags", "Tags, separated by commas", tags),
    field("remarks", "Remarks", remarks),
    message,
    element("div.buttons", element("button.main", { type: "submit" }, "Save"), cancel),
  );
  node.replaceChildren(form);
  name.focus();
}

/** Ask whether the run shall be deleted; its id must be typed. */
function askToRemove(node, run, signal) {
  const typed = element("input", { id: "remove-id", autocomplete: "off", spellcheck: false });
  const really = element("button.main", { type: "submit", disabled: true }, "Delete the run");
  typed.addEventListener("input", () => (really.disabled = typed.value.trim() !== run.run_id));
  const message = element("div", { "aria-live": "polite" });
  const remove = async (event) => {
    event.preventDefault();
    really.disabled = true;
    try {
      await request(ofRun(run.run_id), { method: "DELETE", signal });
      document.dispatchEvent(new CustomEvent("runs-changed"));
      location.hash = "#/runs";
    } catch (error) {
      if (!signal.aborted) message.replaceChildren(problem(error));
      really.disabled = false;
    }
  };
  const cancel = () => {
    show(node, run, signal);
    document.getElementById("remove-run").focus();
  };
  node.replaceChildren(
    element("form.labels-form", { onsubmit: remove },
      element("p", element("strong", "Delete this run with its activations and results?"), " It cannot be restored; the survey can be run again."),
      element("p.field", element("label", { for: "remove-id" }, "Type the id of the run: ", element("code", run.run_id)), typed),
      message,
      element("div.buttons", really, element("button", { type: "button", onclick: cancel }, "Cancel")),
    ),
  );
  typed.focus();
}
