// The switches of a figure: logarithmic axes and relative depth. The report includes this file too.

import { element } from "./elements.js";

/** Return a figure's switches as checkboxes; `changed` is called after each change. */
export function switchesOf(figure, changed) {
  const switches = figure.layout.meta?.switches ?? [];
  const box = (one) => {
    const flip = () => {
      turn(figure, one, !one.is_on);
      changed();
    };
    return element("label.tick", element("input", { type: "checkbox", checked: one.is_on, onchange: flip }), one.label);
  };
  return [...new Set(switches.map(({ group }) => group))].flatMap((group) => {
    const boxes = switches.filter((one) => one.group === group).map(box);
    return group ? element("fieldset.ticks", element("legend", group), element("div", boxes)) : boxes;
  });
}

/** Set the state of a switch, and give the axes the properties of this state. */
function turn(figure, one, isOn) {
  one.is_on = isOn;
  for (const [axis, properties] of Object.entries(isOn ? one.on : one.off)) Object.assign(figure.layout[axis], properties);
}
