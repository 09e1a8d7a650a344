// Maps of all attention heads; a cell, or two selects, open a head's card.

import { choose } from "./address.js";
import { element, fill, selection } from "./elements.js";
import { HeadCard } from "./head-card.js";
import { readSections, sectionNode } from "./sections.js";

/** Open the heads; choices are `layer`, `head` and `circuit`. */
export function openHeads(node, signal, run, group) {
  const card = new HeadCard(run, signal);
  const chooser = new Chooser(run);
  const section = element("div");
  const follow = (circuit, layer, head) => {
    card.isAsked = true;
    const same = chooser.is(circuit, layer, head);
    choose({ circuit, layer, head });
    if (same) card.focus();
  };
  fill(section, signal, async () =>
    (await readSections(run, group, signal)).map((one) => {
      const { node: made, maps } = sectionNode(one, run, signal);
      maps.forEach((frame, index) => makeChoosable(frame, one.maps[index], run, follow));
      return made;
    }),
  );
  const how = element(
    "p",
    { class: "soft" },
    "Each cell is a head; a click, or the arrow keys and Enter, open its card. Spectra are those of the bilinear maps W_QK = s·W_Q R W_Kᵀ and W_VO = W_V W_O, in float64, at offset 0 between query and key.",
  );
  node.append(
    section,
    how,
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
          ["qk", "QK: what attends to what"],
          ["vo", "VO: what is moved"],
        ],
        circuit,
        (value) => choose({ circuit: value }),
      ),
      selection("card-layer", "layer", numbers(this.count.layer), layer, (value) => choose({ layer: value })),
      selection("card-head", "head", numbers(this.count.head), head, (value) => choose({ head: value })),
    );
    if (used?.startsWith("card-")) document.getElementById(used)?.focus();
  }

  is(...place) {
    return place.map(String).every((value, index) => value === this.chosen[index]);
  }
}

/** Let a map's cells be chosen with the mouse, and with the arrow keys and Enter. */
function makeChoosable(frame, { circuit, caption }, run, follow) {
  if (!circuit) return;
  const { n_layers: layers, n_heads: heads } = run.model;
  const at = { layer: 0, head: 0 };
  const said = element("p", { class: "unseen", "aria-live": "polite" });
  const box = element("div", {
    class: "choosable",
    role: "application",
    tabindex: 0,
    "aria-label": `${caption}: arrow keys choose a head, Enter opens its card`,
  });
  frame.plot.replaceWith(box);
  box.append(frame.plot, said);
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
    if (event.key === "Enter") return follow(circuit, at.layer, at.head);
    if (!(event.key in steps) || !frame.figure) return;
    event.preventDefault();
    const [right, up] = steps[event.key];
    at.layer = Math.min(layers - 1, Math.max(0, at.layer + right));
    at.head = Math.min(heads - 1, Math.max(0, at.head + up));
    const { text } = frame.figure.data[0];
    const value = text[at.head]?.[at.layer];
    said.textContent = `L${at.layer}H${at.head}: ${value === null || value === undefined ? "not known" : value.toPrecision(4)}`;
    frame.mark(at.layer, at.head, said.textContent);
  });
  box.addEventListener("blur", () => frame.mark(null));
}
