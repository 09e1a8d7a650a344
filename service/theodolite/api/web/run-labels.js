// The labels of a run: its name, tags and remarks, which the user can change; and the deletion of the run.

import { element, problem } from "./elements.js";
import { ofRun, request, send } from "./service.js";

/** Return the tags and the remarks of a run, with buttons that change the labels, and then call `changed`, or delete the run. */
export function labelsOf(run, signal, changed) {
  const button = (id, text, onclick) => element("button.quiet", { type: "button", id, onclick }, text);
  return element("div.labels",
    run.tags.length > 0 && element("ul.tags", { "aria-label": "Tags" }, run.tags.map((tag) => element("li.badge", tag))),
    button("edit-labels", "Name, tags, remarks…", () => edit(run, signal, changed)),
    button("delete-run", "Delete…", () => askToDelete(run, signal)),
    run.remarks && element("p.remarks", { tabindex: 0 }, run.remarks),
  );
}

function edit(run, signal, changed) {
  const name = element("input", { id: "label-name", maxlength: 200, autocomplete: "off", value: run.name });
  const tags = element("input", { id: "label-tags", maxlength: 1200, autocomplete: "off", value: run.tags.join(", ") });
  const remarks = element("textarea", { id: "label-remarks", maxlength: 10000, rows: 4 }, run.remarks);
  const valueOf = {
    name: () => name.value.trim() || null,
    tags: () => tags.value.split(",").map((tag) => tag.trim()).filter(Boolean),
    remarks: () => remarks.value,
  };
  const save = () => {
    const edited = [name, tags, remarks].filter((field) => field.value !== field.defaultValue).map(({ id }) => id.slice("label-".length));
    const changes = Object.fromEntries(edited.map((label) => [label, valueOf[label]()])); // others may change the other labels
    return send("PATCH", ofRun(run.run_id), changes);
  };
  const show = (labels) => {
    Object.assign(run, labels, { name: labels.name ?? run.spec.name ?? null });
    changed();
    document.getElementById("edit-labels").focus();
  };
  openDialog("Name, tags and remarks", [
    element("label", { for: name.id }, "Name"), name,
    element("label", { for: tags.id }, "Tags, separated by commas"), tags,
    element("label", { for: remarks.id }, "Remarks"), remarks,
  ], element("button.main", { type: "submit" }, "Save"), save, show, signal);
}

/** Ask whether the run shall be deleted: the user types its id. */
function askToDelete(run, signal) {
  const typed = element("input", { id: "typed-id", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const really = element("button.danger", { type: "submit", disabled: true }, "Delete the run");
  typed.addEventListener("input", () => (really.disabled = typed.value.trim() !== run.run_id));
  const remove = () => request(ofRun(run.run_id), { method: "DELETE" });
  const leave = () => (location.hash = "#/runs");
  openDialog("Delete this run?", [
    element("p", "All of its activations and results are deleted, and cannot be restored. To get them again, run the survey again."),
    element("label", { for: typed.id }, "To confirm, type the id of the run: ", element("code", run.run_id)), typed,
  ], really, remove, leave, signal);
}

/** Open a form in a dialog. Its button `submit` calls `act`; the dialog shows an error, or closes and calls `done` with the result. */
function openDialog(title, fields, submit, act, done, signal) {
  const message = element("div");
  const onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const result = await act();
      dialog.close(); // before `done`: outside an open dialog nothing can be focused
      if (!signal.aborted) done(result);
      document.dispatchEvent(new Event("runs-changed"));
    } catch (error) {
      message.replaceChildren(problem(error));
      submit.disabled = false;
    }
  };
  const cancel = element("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const dialog = element("dialog", { "aria-labelledby": "dialog-title", onclose: () => dialog.remove() },
    element("form", { onsubmit },
      element("h2", { id: "dialog-title" }, title), fields, message, element("div.buttons", submit, cancel),
    ),
  );
  signal.addEventListener("abort", () => dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}
