// Making parts of the page. Whatever comes from the service becomes text, never markup.

/** Make an element; functions named on… listen, `true` is an attribute without a value, null and false leave it out. */
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

/** Make what a run is called where others stand beside it: its model, its name if it has one, and its id. */
export function calledRun({ model, name, run_id: id }) {
  return element("span", { class: "called" }, model, " ", name && [name, " "], element("code", { class: "soft small" }, id));
}

/** Make a table in a scroller of its own; cells are texts or elements, and columns of numbers stand to the right. */
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

/** Make a labelled select; `options` are values or [value, text] pairs, or {label, options} of a group of them. */
export function selection(id, label, options, chosen, changed) {
  const made = (option) => {
    if (option.options) return element("optgroup", { label: option.label }, option.options.map(made));
    const [value, text] = [option].flat();
    return element("option", { value, selected: String(value) === String(chosen) }, String(text ?? value));
  };
  const node = element("select", { id, onchange: () => changed(node.value) }, options.map(made));
  return element("div", { class: "choice" }, element("label", { for: id }, label), node);
}

/** Make a group of checkboxes; `changed` is told all that are ticked. At least one stays so. */
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

/** Make a single checkbox. */
export function tick(label, checked, changed, attributes = {}) {
  const box = element("input", { ...attributes, type: "checkbox", checked, onchange: () => changed(box.checked) });
  return element("label", { class: "tick alone" }, box, label);
}

/** Make a list of terms and what they are, as cards. */
export function cards(facts) {
  return element(
    "dl",
    { class: "facts" },
    facts.map(([term, said]) => element("div", {}, element("dt", {}, term), element("dd", {}, String(said)))),
  );
}

/** Make the words for something that went wrong, in the place where it is missed. */
export function problem(error, again) {
  return element(
    "div",
    { class: "problem", role: "alert" },
    element("p", {}, element("strong", {}, `${error.title || "Something went wrong"}. `), error.message),
    again && element("button", { type: "button", onclick: again }, "Try again"),
  );
}

/** Show what `load` makes, and until then that it is on its way; what goes wrong is said in its place. */
export async function fill(node, signal, load, waiting = "Reading…") {
  node.replaceChildren(element("p", { class: "soft waiting", role: "status" }, waiting));
  try {
    const made = await load();
    if (!signal.aborted) node.replaceChildren(...[made].flat().filter(Boolean));
  } catch (error) {
    if (!signal.aborted) node.replaceChildren(problem(error, () => fill(node, signal, load, waiting)));
  }
}
