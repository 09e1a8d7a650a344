// The three curves of a contrast, and the controls that select which of them are drawn.

import { choose } from "./address.js";
import { element, fill, replaceControls, selection, tick, ticks } from "./elements.js";
import { Frame } from "./figures.js";
import { details, howToRead, readSections, withLinks } from "./sections.js";
import { ask, ofRun } from "./service.js";

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
    this.switches = element("div.switches");
    this.heading = element("h2");
    this.message = element("div", { "aria-live": "polite" });
    this.below = element("div");
    this.nodes = [this.heading, this.message, this.switches, this.frame.node, this.below, ...howToRead(sections)];
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
      const text = `The run has no curves of “${contrast}” at position ${position}.`;
      this.message.replaceChildren(element("p.nothing", text));
      this.draw(this.sections[0], choices, isSphere);
      return;
    }
    this.message.replaceChildren(...(section.headline ? [element("p.headline", withLinks(section.headline, this.run))] : []));
    this.below.replaceChildren(...details(section, this.run));
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
      const { positive, negative } = this.run.spec.contrasts[section.contrast];
      const chosen = chosenTraces(this.drawn.figure, this.run.capture.sites, [positive, negative], choices);
      this.redrawSwitches(section, isSphere, [positive, negative], chosen);
      return chosen.figure;
    });
  }

  redrawSwitches(section, isSphere, sets, { sites, shownSets }) {
    const contrasts = [...new Set(this.sections.map((one) => one.contrast))];
    const positions = this.sections.filter((one) => one.contrast === section.contrast).map((one) => one.position);
    const siteTexts = this.run.capture.sites.map((site) => [site, shortSite(site)]);
    const setTexts = sets.map((set) => [set, set]);
    replaceControls(this.switches, [
      selection("curves", "contrast", contrasts, section.contrast, (contrast) =>
        choose({ contrast, position: null, set: null }),
      ),
      selection("curves", "position", positions, section.position, (position) => choose({ position })),
      ticks("sites", siteTexts, sites, (site) => choose({ site, layer: null })),
      ticks("sets", setTexts, shownSets, (set) => choose({ set: set.length < sets.length ? set : null })),
      tick("curves-sphere", "on the sphere", isSphere, (isOn) => choose({ sphere: isOn ? "1" : null })),
    ]);
  }
}

/** Return a section with its contrast and position, from the name of its first figure: curves.CONTRAST.POSITION. */
function named(section) {
  const [, contrast, position] = section.figures[0].name.match(/^curves\.(.+)\.(-?\d+)$/);
  return { ...section, contrast, position };
}

function noCurves() {
  return element("p.nothing", "The survey has no contrast, so it has no curves. The view Compare draws its moments.");
}

/** Return the short name of a site. */
const shortSite = (site) => site.replace(/^resid_/, "");

/**
 * Return the figure with only the chosen traces visible, and the chosen sites and sets, by the `meta` of each trace. No
 * sites select those that the figure shows first; no sets select all.
 */
function chosenTraces(figure, allSites, allSets, choices) {
  const shownFirst = allSites.filter((site) =>
    figure.data.some((trace) => trace.meta?.site === site && trace.visible === true),
  );
  // With a layer, the site is that of a depth that another tab has selected.
  const known = choices.has("layer") ? [] : choices.getAll("site").filter((site) => allSites.includes(site));
  const sites = known.length ? known : shownFirst;
  const wanted = choices.getAll("set").filter((set) => allSets.includes(set));
  const shownSets = wanted.length ? wanted : allSets;
  let bandIsNamed = false;
  const data = figure.data.map((trace) => {
    const { site, set } = trace.meta ?? {};
    if ((site && !sites.includes(site)) || (set && !shownSets.includes(set))) return { ...trace, visible: false };
    const made = { ...trace, visible: true };
    if (trace.fill === "toself") {
      // Only the first visible band has a legend entry, for all bands.
      made.showlegend = !bandIsNamed;
      bandIsNamed = true;
    }
    return made;
  });
  return { figure: { ...figure, data }, sites, shownSets };
}
