// The three curves of a contrast, and the controls that select which of them are drawn.

import { choose } from "./address.js";
import { element, fill, selection, tick, ticks } from "./elements.js";
import { Frame } from "./figures.js";
import { facts, folded, howToRead, readSections } from "./sections.js";
import { ask, ofRun } from "./service.js";
import { chosenTraces, shortSite } from "./traces.js";

/** Open the curves; choices are `contrast`, `position`, `site`, `set` and `sphere`. */
export function openCurves(node, signal, run, group) {
  let curves = null;
  let choices = null;
  const ready = fill(node, signal, async () => {
    const sections = await readSections(run, group, signal);
    if (!sections.length) return noCurves();
    curves = new Curves(run, sections.map(named), signal);
    curves.show(choices);
    return curves.nodes;
  });
  return (address) => {
    choices = address.choices;
    curves?.show(choices);
    return ready;
  };
}

class Curves {
  constructor(run, sections, signal) {
    this.run = run;
    this.sections = sections;
    this.frame = new Frame("Curves", signal, { height: 900 });
    this.switches = element("div", { class: "switches" });
    this.heading = element("h2", {});
    this.message = element("div", { "aria-live": "polite" });
    this.nodes = [this.heading, this.switches, this.message, this.frame.node, ...howToRead(sections)];
    this.drawn = null;
  }

  show(choices) {
    const contrast = choices.get("contrast") ?? this.sections[0].contrast;
    const ofContrast = this.sections.filter((one) => one.contrast === contrast);
    const positions = ofContrast.map((one) => one.position);
    const position = choices.get("position") ?? positions.at(-1);
    const section = ofContrast.find((one) => one.position === position);
    const isSphere = choices.get("sphere") === "1";
    if (!section) {
      this.message.replaceChildren(
        element("p", { class: "nothing" }, `The run has no curves of “${contrast}” at position ${position}.`),
      );
      this.draw(this.sections[0], choices, isSphere);
      return;
    }
    this.message.replaceChildren(...facts(section), ...section.tables.map(folded));
    this.draw(section, choices, isSphere);
  }

  draw(section, choices, isSphere) {
    this.heading.textContent = section.title;
    const { name, caption } = section.figures[isSphere ? 1 : 0];
    this.frame.rename(caption, `${this.run.run_id}.${name}`);
    this.frame.show(async (until) => {
      // The fetched figure contains all sites and sets.
      if (this.drawn?.name !== name)
        this.drawn = { name, figure: await ask(ofRun(this.run.run_id, "figures", name), {}, until) };
      const sides = this.run.spec.contrasts[section.contrast];
      const sets = [sides.positive, sides.negative];
      const chosen = chosenTraces(
        this.drawn.figure,
        this.run.capture.sites,
        sets,
        choices.getAll("site"),
        choices.getAll("set"),
      );
      this.redrawSwitches(section, isSphere, sets, chosen);
      return chosen.figure;
    });
  }

  /** Replace the controls, and keep the focus on the one in use. */
  redrawSwitches(section, isSphere, sets, { sites, shownSets }) {
    const used = document.activeElement;
    const index = this.switches.contains(used) ? [...this.controls()].indexOf(used) : -1;
    const contrasts = [...new Set(this.sections.map((one) => one.contrast))];
    const positions = this.sections.filter((one) => one.contrast === section.contrast).map((one) => one.position);
    const both = sets.length > 1;
    this.switches.replaceChildren(
      ...[
        selection("curves-contrast", "contrast", contrasts, section.contrast, (contrast) =>
          choose({ contrast, position: null, set: null }),
        ),
        selection("curves-position", "position", positions, section.position, (position) => choose({ position })),
        ticks(
          "sites",
          this.run.capture.sites.map((site) => [site, shortSite(site)]),
          sites,
          (site) => choose({ site }),
        ),
        both &&
          ticks(
            "sets",
            sets.map((set) => [set, set]),
            shownSets,
            (set) => choose({ set: set.length < sets.length ? set : null }),
          ),
        tick("on the sphere", isSphere, (isOn) => choose({ sphere: isOn ? "1" : null }), { id: "curves-sphere" }),
      ].filter(Boolean),
    );
    if (index >= 0) this.controls()[index]?.focus();
  }

  controls() {
    return this.switches.querySelectorAll("select, input");
  }
}

/** Return a section with its contrast and position, from the name of its first figure: curves.CONTRAST.POSITION. */
function named(section) {
  const [, contrast, position] = section.figures[0].name.match(/^curves\.(.+)\.(-?\d+)$/);
  return { ...section, contrast, position };
}

function noCurves() {
  return element(
    "p",
    { class: "nothing" },
    "The survey has no contrast, so it has no curves. The view Compare draws its moments.",
  );
}
