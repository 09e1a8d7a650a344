// What result groups show: sentences made from the numbers, figures, maps side by side, tables to look up.

import { element, fill, table } from "./elements.js";
import { Frame } from "./figures.js";
import { ask, ofRun } from "./service.js";

/** Open a tab that shows the sections of one group. */
export function openSections(node, signal, run, group) {
  fill(node, signal, async () =>
    (await readSections(run, group, signal)).map((section) => sectionNode(section, run, signal).node),
  );
  return null;
}

/** Return the sections of one group. */
export async function readSections(run, group, signal) {
  return (await ask(ofRun(run.run_id, "sections", group), {}, signal)).items;
}

/** Make a section, and the frames of its maps, whose cells may be chosen. */
export function sectionNode(section, run, signal) {
  const figures = section.figures.map((figure) => drawnFrame(figure, run, signal));
  const maps = section.maps.map((map) => drawnFrame(map, run, signal, 300));
  const node = element(
    "section",
    {},
    element("h2", {}, section.title),
    facts(section),
    figures.map((frame) => frame.node),
    maps.length > 0 &&
      element(
        "div",
        { class: "maps" },
        maps.map((frame) => frame.node),
      ),
    section.tables.map(folded),
  );
  return { node, maps };
}

/** Make the sentences and conventions of a section. */
export function facts(section) {
  return [
    section.facts.length > 0 &&
      element(
        "ul",
        { class: "sentences" },
        section.facts.map((fact) => element("li", {}, fact)),
      ),
    section.notes.length > 0 && element("p", { class: "soft" }, section.notes.map(sentence).join(" ")),
  ].filter(Boolean);
}

/** Make a table that is folded away until it is opened. */
export function folded({ caption, columns, rows }) {
  return element("details", {}, element("summary", {}, caption), table(columns, rows, { caption }));
}

/** Make a frame that draws one of the run's figures. */
export function drawnFrame({ name, caption }, run, signal, height = 600) {
  const frame = new Frame(caption, signal, { name: `${run.run_id}.${name}`, height });
  frame.show((until) => ask(ofRun(run.run_id, "figures", name), {}, until));
  return frame;
}

function sentence(note) {
  return `${note[0].toUpperCase()}${note.slice(1)}.`;
}
