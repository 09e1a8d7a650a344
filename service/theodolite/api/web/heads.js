// Maps of all attention heads; a cell of a map or the selects open the card of a head.

import { choose } from "./address.js";
import { element, fill, replaceControls, selection } from "./elements.js";
import { HeadCard } from "./head-card.js";
import { howToRead, readSections, sectionNode } from "./sections.js";

/** Open the heads; choices are `layer`, `head`, `circuit` and `offset`. An address with a head opens at its card. */
export function openHeads(node, signal, run, group) {
  const chooser = new Chooser(run);
  const card = new HeadCard(run, signal, (offsets) => chooser.offer(offsets));
  const section = element("div");
  const follow = (circuit, layer, head) => {
    card.isSelected = true;
    const same = chooser.is(circuit, layer, head);
    choose({ circuit, layer, head });
    if (same) card.focus();
  };
  const frames = [];
  const filled = fill(section, signal, async () => {
    const sections = await readSections(run, group, signal);
    const nodes = sections.map((one) => {
      const { node: made, maps } = sectionNode(one, run, signal);
      frames.push(...maps);
      maps.forEach((frame, index) => makeChoosable(frame, one.maps[index], run, follow));
      return made;
    });
    return [...nodes, ...howToRead(sections)];
  });
  node.append(section, element("section.card", { "aria-labelledby": "card-name" }, chooser.node, card.node));
  let isFirst = true;
  return async ({ choices }) => {
    const circuit = choices.get("circuit") ?? "qk";
    const chosen = [circuit, choices.get("layer") ?? "0", choices.get("head") ?? "0"];
    const offset = circuit === "qk" ? (choices.get("offset") ?? "0") : "0";
    chooser.show(offset, ...chosen);
    card.show(offset, ...chosen);
    const isNamed = isFirst && choices.has("head");
    isFirst = false;
    if (!isNamed) return;
    await filled;
    await Promise.all(frames.map((frame) => frame.ready)); // the maps above the card move it
    if (!signal.aborted) card.focus("instant");
  };
}

const CIRCUITS = [["qk", "QK: attention scores"], ["ov", "OV: values and outputs"]];

class Chooser {
  constructor({ model }) {
    this.model = model;
    this.offsets = [0];
    this.node = element("div.switches");
  }

  /** Offer the offsets at which the circuits of this run are decomposed. */
  offer(offsets) {
    if (String(offsets) === String(this.offsets)) return;
    this.offsets = offsets;
    this.show(this.offset, ...this.chosen);
  }

  show(offset, ...chosen) {
    this.offset = offset;
    this.chosen = chosen.map(String);
    const [circuit, layer, head] = this.chosen;
    const numbers = (count) => Array.from({ length: count }, (_, index) => index);
    replaceControls(this.node, [
      selection("card", "circuit", CIRCUITS, circuit, (value) => choose({ circuit: value })),
      selection("card", "layer", numbers(this.model.n_layers), layer, (value) => choose({ layer: value })),
      selection("card", "head", numbers(this.model.n_heads), head, (value) => choose({ head: value })),
      circuit === "qk" && this.offsets.length > 1 &&
        selection("card", "offset", this.offsets, offset, (value) => choose({ offset: value })),
    ]);
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
  const message = element("p.unseen", { "aria-live": "polite" });
  const label = `${caption}: arrow keys select a head, Enter opens its card`;
  const box = element("div.choosable", { role: "application", tabindex: 0, "aria-label": label });
  frame.plot.replaceWith(box);
  box.append(frame.plot, message);
  frame.listen("plotly_click", ({ points: [cell] }) => follow(circuit, cell.x, cell.y));
  const arrows = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const steps = { ...arrows, Home: [-layers, 0], End: [layers, 0] };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") return follow(circuit, cursor.layer, cursor.head);
    if (!(event.key in steps) || !frame.figure) return;
    event.preventDefault();
    const [right, up] = steps[event.key];
    cursor.layer = Math.min(layers - 1, Math.max(0, cursor.layer + right));
    cursor.head = Math.min(heads - 1, Math.max(0, cursor.head + up));
    const value = frame.figure.data[0].text[cursor.head]?.[cursor.layer];
    message.textContent = `L${cursor.layer}H${cursor.head}: ${value?.toPrecision(4) ?? "missing"}`;
    frame.mark(cursor.layer, cursor.head, message.textContent);
  });
  box.addEventListener("blur", () => frame.mark(null));
}
