// Maps of all attention heads; a cell of a map or the selects open the card of a head.

import { choose } from "./address.js";
import { element, fill, selection } from "./elements.js";
import { HeadCard } from "./head-card.js";
import { howToRead, readSections, sectionNode } from "./sections.js";

/** Open the heads; choices are `layer`, `head` and `circuit`. */
export function openHeads(node, signal, run, group) {
  const card = new HeadCard(run, signal);
  const chooser = new Chooser(run);
  const section = element("div");
  const follow = (circuit, layer, head) => {
    card.isSelected = true;
    const same = chooser.is(circuit, layer, head);
    choose({ circuit, layer, head });
    if (same) card.focus();
  };
  fill(section, signal, async () => {
    const sections = await readSections(run, group, signal);
    const nodes = sections.map((one) => {
      const { node: made, maps } = sectionNode(one, run, signal);
      maps.forEach((frame, index) => makeChoosable(frame, one.maps[index], run, follow));
      return made;
    });
    return [...nodes, ...howToRead(sections)];
  });
  node.append(
    section,
    element("section", { class: "card", "aria-labelledby": "card-name" }, chooser.node, card.node),
  );
  return ({ choices }) => {
    const [circuit, layer, head] = [
      choices.get("circuit") ?? "qk",
      choices.get("layer") ?? "0",
      choices.get("head") ?? "0",
    ];
    chooser.show(circuit, layer, head);
    card.show(circuit, layer, head);
  };
}

class Chooser {
  constructor({ model }) {
    this.count = { layer: model.n_layers, head: model.n_heads };
    this.node = element("div", { class: "switches" });
  }

  show(...chosen) {
    this.chosen = chosen.map(String);
    const [circuit, layer, head] = this.chosen;
    const used = document.activeElement?.id;
    const numbers = (count) => Array.from({ length: count }, (_, index) => index);
    this.node.replaceChildren(
      selection(
        "card-circuit",
        "circuit",
        [
          ["qk", "QK: attention scores"],
          ["vo", "VO: values and outputs"],
        ],
        circuit,
        (value) => choose({ circuit: value }),
      ),
      selection("card-layer", "layer", numbers(this.count.layer), layer, (value) => choose({ layer: value })),
      selection("card-head", "head", numbers(this.count.head), head, (value) => choose({ head: value })),
    );
    if (used?.startsWith("card-")) document.getElementById(used)?.focus();
  }

  is(...selected) {
    return selected.map(String).every((value, index) => value === this.chosen[index]);
  }
}

/** Let the user select a cell of a map with the mouse, or with the arrow keys and Enter. */
function makeChoosable(frame, { circuit, caption }, run, follow) {
  if (!circuit) return;
  const { n_layers: layers, n_heads: heads } = run.model;
  const cursor = { layer: 0, head: 0 };
  const message = element("p", { class: "unseen", "aria-live": "polite" });
  const box = element("div", {
    class: "choosable",
    role: "application",
    tabindex: 0,
    "aria-label": `${caption}: arrow keys select a head, Enter opens its card`,
  });
  frame.plot.replaceWith(box);
  box.append(frame.plot, message);
  frame.listen("plotly_click", ({ points: [cell] }) => follow(circuit, cell.x, cell.y));
  box.addEventListener("keydown", (event) => {
    const steps = {
      ArrowRight: [1, 0],
      ArrowLeft: [-1, 0],
      ArrowUp: [0, 1],
      ArrowDown: [0, -1],
      Home: [-layers, 0],
      End: [layers, 0],
    };
    if (event.key === "Enter") return follow(circuit, cursor.layer, cursor.head);
    if (!(event.key in steps) || !frame.figure) return;
    event.preventDefault();
    const [right, up] = steps[event.key];
    cursor.layer = Math.min(layers - 1, Math.max(0, cursor.layer + right));
    cursor.head = Math.min(heads - 1, Math.max(0, cursor.head + up));
    const { text } = frame.figure.data[0];
    const value = text[cursor.head]?.[cursor.layer];
    message.textContent = `L${cursor.layer}H${cursor.head}: ${value === null || value === undefined ? "missing" : value.toPrecision(4)}`;
    frame.mark(cursor.layer, cursor.head, message.textContent);
  });
  box.addEventListener("blur", () => frame.mark(null));
}
