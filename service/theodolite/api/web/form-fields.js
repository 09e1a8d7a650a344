// Controls of a form that shows a text: the user changes either, so a control is updated in place and keeps the focus.

import { element } from "./elements.js";

let count = 0;

/** Return a control under its label. */
export function labelled(label, control) {
  control.id ||= `field-${++count}`;
  return element("div.choice", element("label", { for: control.id }, label), control);
}

/** Return an empty field for a line of text; `changed` gets the text after each key. */
export function textField(changed, attributes = {}) {
  const plain = { type: "text", autocomplete: "off", spellcheck: "false" };
  return element("input", { ...plain, ...attributes, oninput: ({ target }) => changed(target.value) });
}

/** Return an empty field for a name; `changed` gets the name when the user leaves the field or presses Enter. */
export function nameField(changed) {
  const plain = { type: "text", autocomplete: "off", spellcheck: "false", size: 11 };
  return element("input", { ...plain, onchange: ({ target }) => changed(target.value.trim()) });
}

/** Return an empty select; `changed` gets the chosen value. */
export function choiceField(changed) {
  return element("select", { onchange: ({ target }) => changed(target.value) });
}

/** Show a value in a field, unless the user is writing in it. */
export function showValue(field, value) {
  if (field !== document.activeElement && field.value !== value) field.value = value;
}

/** Show a value in a select with [value, text] pairs as options; a value without an option gets one. */
export function showChoice(select, options, value) {
  const all = options.some(([one]) => one === value) ? options : [...options, [value, value]];
  const key = JSON.stringify(all);
  if (select.dataset.options !== key) {
    select.dataset.options = key;
    select.replaceChildren(...all.map(([one, text]) => element("option", { value: one }, text)));
  }
  select.value = value;
}

/** Mark the fields of a part of the spec, by their keys in it, if an error's lines begin with their paths. */
export function markFields(path, fields, lines) {
  for (const [key, controls] of Object.entries(fields))
    for (const control of controls) mark(control, lines.some((line) => isAbout(line, [...path, key].join("."))));
}

/** Mark the field with the name of a part of the spec if a line of an error refuses the name. */
export function markName(path, field, lines) {
  mark(field, lines.some((line) => line.startsWith(`${path.join(".")}: given`)));
}

/**
 * Make `rows` (by name) equal to the parts of a mapping, in its order: `make` returns the row of a name. Rows that stay
 * are the same elements.
 */
export function matchRows(list, rows, parts, make) {
  for (const [name, row] of rows)
    if (!Object.hasOwn(parts, name)) {
      row.node.remove();
      rows.delete(name);
    }
  Object.keys(parts).forEach((name, index) => {
    if (!rows.has(name)) rows.set(name, make(name));
    const { node } = rows.get(name);
    if (list.children[index] !== node) list.insertBefore(node, list.children[index] ?? null);
  });
}

function mark(control, isWrong) {
  if (isWrong) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
}

function isAbout(line, path) {
  return line.startsWith(path) && /^([.: ]|$)/.test(line.slice(path.length));
}
