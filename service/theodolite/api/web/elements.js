// Makes elements of the page. Values from the service become text, never markup.

/**
 * Return an element of a tag with classes, such as `element("p.soft.small", { id: "help" }, "text")`. Attributes are
 * optional: on… is a listener, and `true` sets an empty attribute. Attributes and children that are null, undefined or
 * false are left out.
 */
export function element(name, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  made.classList.add(...classes);
  const attributes = children[0]?.constructor === Object ? children.shift() : {};
  for (const [key, value] of Object.entries(attributes).filter(([, given]) => isGiven(given)))
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  made.append(...children.flat().filter(isGiven));
  return made;
}

function isGiven(value) {
  return value !== null && value !== undefined && value !== false;
}

/** Return the label of a run in a list: its model, its name if it has one, and its id. */
export function runLabel({ model, name, run_id: id }) {
  return element("span.called", model, " ", name && [name, " "], element("code.soft.small", id));
}

/** Return a table in a scrollable region; cells are texts or elements, and `numbers` are the columns of numbers. */
export function table(columns, rows, caption, numbers = []) {
  const kind = (index) => (numbers.includes(index) ? "number" : null);
  const heads = columns.map((column, index) => element("th", { scope: "col", class: kind(index) }, column));
  const cellOf = (cell, index) =>
    index ? element("td", { class: kind(index) }, cell) : element("th", { scope: "row" }, cell);
  return element("div.scroll", { tabindex: 0, role: "region", "aria-label": caption },
    element("table",
      element("caption.unseen", caption),
      element("thead", element("tr", heads)),
      element("tbody", rows.map((row) => element("tr", row.map(cellOf)))),
    ),
  );
}

/**
 * Return the head of a column. Its button orders the rows: ascending, then descending, then in the usual order. `order`
 * is a column, after `-` in descending order, or null; `changed` gets the next order, or null for the usual one.
 */
export function sortHead(name, { title = name, kind, order, usual = null, changed }) {
  const isUp = order === name, isDown = order === `-${name}`;
  const following = isUp ? `-${name}` : isDown && order !== usual ? null : name;
  const mark = element("span", { "aria-hidden": "true" }, isUp ? " ▲" : isDown ? " ▼" : "");
  return element("th", { scope: "col", class: kind, "aria-sort": isUp ? "ascending" : isDown ? "descending" : null },
    element("button.quiet", { type: "button", id: `order-${name}`, onclick: () => changed(following) }, title, mark));
}

/** Return a labelled select of a view; an option is a value, a [value, text] pair, or a group {label, options}. */
export function selection(view, label, options, chosen, changed) {
  const made = (option) => {
    if (option.options) return element("optgroup", { label: option.label }, option.options.map(made));
    const [value, text] = [option].flat();
    return element("option", { value, selected: String(value) === String(chosen) }, String(text ?? value));
  };
  const id = `${view}-${label}`.replaceAll(" ", "-");
  const node = element("select", { id, onchange: () => changed(node.value) }, options.map(made));
  return element("div.choice", element("label", { for: id }, label), node);
}

/** Return a single checkbox. */
export function tick(id, label, checked, changed) {
  const box = element("input", { id, type: "checkbox", checked, onchange: () => changed(box.checked) });
  return element("label.tick.alone", box, label);
}

/** Replace the controls in a node, and keep the focus on the one in use. */
export function replaceControls(node, controls) {
  const used = node.contains(document.activeElement) && document.activeElement.id;
  node.replaceChildren(...controls.filter(Boolean));
  if (used) document.getElementById(used)?.focus();
}

/** Return a list of [term, value] pairs as cards. */
export function cards(facts) {
  const card = ([term, value]) => element("div", element("dt", term), element("dd", String(value)));
  return element("dl.facts", facts.map(card));
}

/** Return the message of an error, with a button to try again if `again` is given. */
export function problem(error, again) {
  return element("div.problem", { role: "alert" },
    element("p", element("strong", `${error.title || "Error"}. `), error.message),
    again && element("button", { type: "button", onclick: again }, "Try again"),
  );
}

/**
 * Show the elements that `load` returns; before that show `waiting`, after an error its message. The focus returns to
 * the control that was in use, by its id.
 */
export async function fill(node, signal, load, waiting = "Loading…") {
  // An aborted call leaves the id to the call that replaces it.
  if (node.contains(document.activeElement)) node.dataset.used = document.activeElement.id;
  node.replaceChildren(element("p.soft.waiting", { role: "status" }, waiting));
  let made;
  try {
    made = await load();
  } catch (error) {
    made = problem(error, () => fill(node, signal, load, waiting));
  }
  if (signal.aborted) return;
  node.replaceChildren(...[made].flat().filter(Boolean));
  // A user who chose another control meanwhile keeps it.
  if (document.activeElement === document.body) document.getElementById(node.dataset.used)?.focus();
  delete node.dataset.used;
}

/** Copy a text and say so on the button for a moment; `label` returns the button's text after that. */
export async function copyFrom(button, text, label) {
  await copy(text);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label()), 1500);
}

/** Put a text on the clipboard; a page without TLS of another machine can do so only from a selection. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea.unseen", text);
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
