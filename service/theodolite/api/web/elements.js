// Makes elements of the page. Values from the service become text, never markup.

/** Return an element. An attribute on… is a listener; `true` sets an empty attribute; null and false omit it. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Return the label of a run in a list: its model, its name if it has one, and its id. */
export function runLabel({ model, name, run_id: id }) {
  return element("span", { class: "called" }, model, " ", name && [name, " "], element("code", { class: "soft small" }, id));
}

/** Return a table in a scrollable region; cells are texts or elements, and `numbers` are the columns of numbers. */
export function table(columns, rows, { caption, numbers = [] } = {}) {
  const kind = (index) => (numbers.includes(index) ? "number" : null);
  const scroller = element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    element(
      "table",
      {},
      element("caption", { class: "unseen" }, caption),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          columns.map((column, index) => element("th", { scope: "col", class: kind(index) }, column)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.map((row) =>
          element(
            "tr",
            {},
            row.map((cell, index) =>
              index ? element("td", { class: kind(index) }, cell) : element("th", { scope: "row" }, cell),
            ),
          ),
        ),
      ),
    ),
  );
  return scroller;
}

/** Return a labelled select; an option is a value, a [value, text] pair, or a group {label, options}. */
export function selection(id, label, options, chosen, changed) {
  const made = (option) => {
    if (option.options) return element("optgroup", { label: option.label }, option.options.map(made));
    const [value, text] = [option].flat();
    return element("option", { value, selected: String(value) === String(chosen) }, String(text ?? value));
  };
  const node = element("select", { id, onchange: () => changed(node.value) }, options.map(made));
  return element("div", { class: "choice" }, element("label", { for: id }, label), node);
}

/** Return a group of checkboxes; `changed` gets all checked values. At least one box stays checked. */
export function ticks(legend, options, chosen, changed) {
  const boxes = options.map(([value, text]) => {
    const box = element("input", { type: "checkbox", value, checked: chosen.includes(value) });
    box.addEventListener("change", () => {
      const ticked = boxes.map(([one]) => one).filter((one) => one.checked);
      if (ticked.length) changed(ticked.map((one) => one.value));
      else box.checked = true;
    });
    return [box, element("label", { class: "tick" }, box, text)];
  });
  return element(
    "fieldset",
    { class: "ticks" },
    element("legend", {}, legend),
    element(
      "div",
      {},
      boxes.map(([, label]) => label),
    ),
  );
}

/** Return a single checkbox. */
export function tick(label, checked, changed, attributes = {}) {
  const box = element("input", { ...attributes, type: "checkbox", checked, onchange: () => changed(box.checked) });
  return element("label", { class: "tick alone" }, box, label);
}

/** Return a list of [term, value] pairs as cards. */
export function cards(facts) {
  return element(
    "dl",
    { class: "facts" },
    facts.map(([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, String(value)))),
  );
}

/** Return the message of an error, with a button to try again if `again` is given. */
export function problem(error, again) {
  return element(
    "div",
    { class: "problem", role: "alert" },
    element("p", {}, element("strong", {}, `${error.title || "Error"}. `), error.message),
    again && element("button", { type: "button", onclick: again }, "Try again"),
  );
}

/** Show the elements that `load` returns; before that show `waiting`, after an error its message. */
export async function fill(node, signal, load, waiting = "Loading…") {
  node.replaceChildren(element("p", { class: "soft waiting", role: "status" }, waiting));
  try {
    const made = await load();
    if (!signal.aborted) node.replaceChildren(...[made].flat().filter(Boolean));
  } catch (error) {
    if (!signal.aborted) node.replaceChildren(problem(error, () => fill(node, signal, load, waiting)));
  }
}
