// The sections of an analysis: sentences, figures, maps side by side, and tables.

import { addressOf, readAddress } from "./address.js";
import { element, fill, table } from "./elements.js";
import { Frame } from "./figures.js";
import { ask, ofRun } from "./service.js";

/** Open a tab that shows the sections of one analysis. */
export function openSections(node, signal, run, group) {
  fill(node, signal, async () => {
    const sections = await readSections(run, group, signal);
    const chosen = `“${readAddress().choices.get("contrast")}”`; // its sections come first
    sections.sort((one, other) => other.title.includes(chosen) - one.title.includes(chosen));
    return [...sections.map((section) => sectionNode(section, run, signal)), ...howToRead(sections)];
  });
}

/** Return the sections of one analysis. */
export async function readSections(run, group, signal) {
  return (await ask(ofRun(run.run_id, "sections", group), {}, signal)).items;
}

/** Return the element of a section: one figure first, the others and all words folded. */
export function sectionNode(section, run, signal) {
  const frameOf = (figure) => drawnFrame(figure, run, signal, section.maps.includes(figure) ? 300 : 600).node;
  const [hero, ...others] = [...section.figures, ...section.maps];
  return element("section",
    headline(section, run),
    hero && frameOf(hero),
    others.length > 0 && opened(`More figures (${others.length})`, () => element("div.maps", others.map(frameOf))),
    details(section, run),
  );
}

/** Return the title of a section, and its finding in one sentence. */
export function headline(section, run) {
  return [
    element("h2", section.title),
    ...(section.headline ? [element("p.headline", withLinks(section.headline, run))] : []),
  ];
}

/** Return the sentences, conventions and tables of a section of a run, folded. */
export function details(section, run) {
  return [
    (section.facts.length > 0 || section.notes.length > 0) && opened("All numbers, in words", () => facts(section, run)),
    ...section.tables.map(folded),
  ].filter(Boolean);
}

/** Return folded content that is made when it is opened first. */
export function opened(title, make) {
  const node = element("details.more", element("summary", title));
  node.addEventListener("toggle", () => node.append(...[make()].flat()), { once: true });
  return node;
}

/** Return the sentences and conventions of a section of a run as elements. */
function facts(section, run) {
  return [
    section.facts.length > 0 && element("ul.sentences", section.facts.map((fact) => element("li", withLinks(fact, run)))),
    section.notes.length > 0 && element("p.soft", section.notes.map(sentence).join(" ")),
  ].filter(Boolean);
}

/**
 * Return the parts of a sentence, in which each attention head of the run, such as L12H3, is a link to its card: that of
 * the circuit that the sentence names last before the head, or of what the head writes (OV).
 */
export function withLinks(text, run) {
  if (!run.analyses.includes("heads")) return [text];
  return text.split(/\b(L\d+H\d+)\b/).map((part, index, parts) => {
    if (index % 2 === 0) return part;
    const named = /.*\b(QK|OV)\b/s.exec(parts.slice(0, index).join("")) ?? /\b(QK|OV)\b/.exec(text);
    const circuit = named?.[1] === "QK" ? "qk" : "ov";
    const [layer, head] = part.slice(1).split("H");
    return element("a", { href: addressOf(["runs", run.run_id, "heads"], { circuit, layer, head }) }, part);
  });
}

/** Return the explanations of the figures of some sections, each text once, as folded elements. */
export function howToRead(sections) {
  const texts = new Set(sections.map((section) => section.how_to_read).filter(Boolean));
  return [...texts].map((text) =>
    element("details", element("summary", "How to read the figures"), element("p", text)),
  );
}

/** Return a folded table. */
function folded({ caption, columns, rows, note }) {
  return element("details", element("summary", caption), note && element("p.soft", note), table(columns, rows, caption));
}

/** Return a frame that draws one figure of the run; its promise `ready` resolves when the figure is drawn. */
export function drawnFrame({ name, caption }, run, signal, height = 600) {
  const frame = new Frame(caption, signal, { name: `${run.run_id}.${name}`, height });
  frame.ready = frame.show((until) => ask(ofRun(run.run_id, "figures", name), {}, until));
  return frame;
}

function sentence(note) {
  return `${note[0].toUpperCase()}${note.slice(1)}.`;
}
