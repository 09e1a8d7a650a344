// A map of all attention heads, chosen from a menu, with the card of one head beside it.

import { choose } from "./address.js";
import { element, fill, replaceControls, selection } from "./elements.js";
import { Frame } from "./figures.js";
import { HeadCard } from "./head-card.js";
import { details, headline, howToRead, readSections, sectionNode } from "./sections.js";
import { ask, ofRun } from "./service.js";

/**
 * Open the heads; choices are `map`, `layer`, `head`, `circuit` and `offset`. Without a head it is the strongest one. The
 * first maps are those of what heads write onto a contrast's direction.
 */
export function openHeads(node, signal, run, group) {
  const atlas = new Atlas(run, signal);
  const ready = fill(node, signal, async () => {
    const [sections, written] = await Promise.all([
      readSections(run, group, signal),
      run.analyses.includes("contributions") ? readSections(run, "contributions", signal) : [],
    ]);
    return atlas.nodes(sections, written.flatMap(({ maps }) => maps));
  });
  return async ({ choices }) => {
    await ready;
    if (!signal.aborted) await atlas.show(choices);
  };
}

class Atlas {
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.chooser = new Chooser(run);
    this.card = new HeadCard(run, signal, (offsets) => this.chooser.offer(offsets));
    this.menu = element("div.switches");
    this.frame = new Frame("Map of heads", signal, { height: 420 });
    this.drawn = null;
    this.isFirst = true;
    makeChoosable(this.frame, run, (layer, head) => this.follow(layer, head));
  }

  /** Return the elements of the first section, whose maps have a cell for each head, and of the others. */
  nodes([first, ...others], written) {
    this.maps = [...written, ...first.maps];
    const card = element("section.card", { "aria-labelledby": "card-name" }, this.chooser.node, this.card.node);
    return [
      ...headline(first, this.run),
      this.menu,
      element("div.docked", this.frame.node, card),
      ...details(first, this.run),
      ...others.map((section) => sectionNode(section, this.run, this.signal)),
      ...howToRead([first, ...others]),
    ];
  }

  async show(choices) {
    const map = this.maps.find(({ name }) => name === choices.get("map")) ?? this.maps[0];
    replaceControls(this.menu, [
      selection("heads", "map", this.maps.map(({ name, caption }) => [name, caption]), map.name, (name) => choose({ map: name })),
    ]);
    this.circuit = map.circuit || "qk";
    const drawing = this.draw(map);
    const circuit = choices.get("circuit") ?? this.circuit;
    const isNamed = choices.has("head");
    if (!isNamed) await drawing;
    const [layer, head] = isNamed ? [choices.get("layer") ?? "0", choices.get("head")] : this.strongest();
    const offset = circuit === "qk" ? (choices.get("offset") ?? "0") : "0";
    this.chooser.show(offset, circuit, layer, head);
    this.card.show(offset, circuit, layer, head);
    if (this.isFirst && isNamed) {
      await drawing; // the map above the card moves it on a narrow page
      if (!this.signal.aborted) this.card.focus("instant");
    }
    this.isFirst = false;
  }

  draw({ name, caption }) {
    if (this.drawn === name) return this.drawing;
    this.drawn = name;
    this.frame.rename(caption, `${this.run.run_id}.${name}`);
    this.drawing = this.frame.show((until) => ask(ofRun(this.run.run_id, "figures", name), {}, until));
    return this.drawing;
  }

  /** Return the layer and the head with the largest absolute value of the drawn map, outside of its grey cover. */
  strongest() {
    let [layer, head, largest] = [0, 0, -1];
    const [map, ...above] = this.frame.figure?.data ?? [];
    const covers = above.filter(({ type }) => type === "heatmap").map(({ z }) => z);
    for (const [row, values] of (map?.text ?? []).entries())
      for (const [column, value] of values.entries())
        if (value !== null && Math.abs(value) > largest && !covers.some((cells) => cells[row]?.[column]))
          [layer, head, largest] = [column, row, Math.abs(value)];
    return [layer, head];
  }

  follow(layer, head) {
    this.card.isSelected = true;
    const same = this.chooser.is(this.circuit, layer, head);
    choose({ circuit: this.circuit, layer, head, site: null });
    if (same) this.card.focus();
  }
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
function makeChoosable(frame, run, follow) {
  const { n_layers: layers, n_heads: heads } = run.model;
  const cursor = { layer: 0, head: 0 };
  const message = element("p.unseen", { "aria-live": "polite" });
  const label = "Map of heads: arrow keys select a head, Enter opens its card";
  const box = element("div.choosable", { role: "application", tabindex: 0, "aria-label": label });
  frame.plot.replaceWith(box);
  box.append(frame.plot, message);
  frame.listen("plotly_click", ({ points: [cell] }) => follow(cell.x, cell.y));
  const arrows = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const steps = { ...arrows, Home: [-layers, 0], End: [layers, 0] };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") return follow(cursor.layer, cursor.head);
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
