// One run: its name, an overview, and a tab for each chapter of its analyses.

import { addressOf, replaceAddress } from "./address.js";
import { element, problem } from "./elements.js";
import { openOverview } from "./overview.js";
import { labelsOf } from "./run-labels.js";
import { openSections } from "./sections.js";
import { ask, ofRun, readAnalyses } from "./service.js";
import { Stage } from "./stage.js";

// The tabs of other analyses show only their sections.
const OPENERS = {
  overview: async () => openOverview,
  prompts: async () => (await import("./prompts.js")).openPrompts,
  heads: async () => (await import("./heads.js")).openHeads,
  words: async () => (await import("./words.js")).openWords,
  tables: async () => (await import("./tables.js")).openTables,
};

const SECONDS = 5; // between two looks at a run that is not complete

/** Open a run; the third part of the address is the tab. A run that is not complete is opened again when it changes. */
export function openRun(node, signal) {
  let ready = null;
  let latest = null;
  const show = async (address) => {
    latest = address;
    ready ??= open(node, signal, address.path[1]).then((tabs) => {
      if (tabs) follow(tabs, signal, again);
      return tabs;
    });
    const tabs = await ready;
    if (!signal.aborted) tabs?.show(latest);
  };
  const again = async (tabs) => {
    const focused = document.activeElement.id;
    tabs.stage.close();
    ready = null;
    await show(latest);
    document.getElementById(focused)?.focus({ preventScroll: true });
    document.dispatchEvent(new Event("runs-changed"));
  };
  return show;
}

/** Call `changed` when the state of a run that is not complete changes, but not while the user reads or uses its tab. */
async function follow(tabs, signal, changed) {
  const stateOf = ({ state, analyses, sets }) => JSON.stringify([state, analyses, Object.values(sets).map((facts) => facts.shards_committed)]);
  while (tabs.run.state !== "complete" && !signal.aborted) {
    await new Promise((resolve) => setTimeout(resolve, SECONDS * 1000));
    if (document.hidden || scrollY > 0 || tabs.panel.contains(document.activeElement)) continue;
    const now = await ask(ofRun(tabs.run.run_id), {}, signal).catch(() => null); // the next look tries again
    if (now && stateOf(now) !== stateOf(tabs.run)) return changed(tabs);
  }
}

async function open(node, signal, id) {
  document.title = `${id} · Theodolite`;
  node.replaceChildren(element("p.soft.waiting", { role: "status" }, "Loading the run…"));
  try {
    const [run, groups] = await Promise.all([ask(ofRun(id), {}, signal), readAnalyses()]);
    const names = run.analyses.length > 0 ? (await ask(ofRun(id, "sections"), {}, signal)).items : [];
    if (signal.aborted) return null;
    document.title = `${run.name ?? run.model.name} · Theodolite`;
    const hasPrompts = names.length > 0 && Object.keys(run.sets).length > 0;
    const tabs = new Tabs(run, [
      { name: "overview", title: "Overview" },
      ...(hasPrompts ? [{ name: "prompts", title: "Prompts" }] : []),
      ...chapters(shownOf(groups, names, run.unfinished), names),
      ...(run.tables.length > 0 ? [{ name: "tables", title: "Data" }] : []),
    ], signal);
    const head = element("div.run-head");
    const drawHead = () => head.replaceChildren(element("h1", run.name ?? run.model.name), labelsOf(run, signal, drawHead), lead(run));
    drawHead();
    node.replaceChildren(head, tabs.list, tabs.panel);
    return tabs;
  } catch (error) {
    if (!signal.aborted) node.replaceChildren(element("h1", id), problem(error, () => location.reload()));
    return null;
  }
}

/** Return the analyses with sections, finished or not, in the order of the report. */
function shownOf(groups, finished, unfinished) {
  const shown = groups.filter(({ name, chapter }) => finished.includes(name) || (chapter && unfinished.includes(name)));
  const place = ({ name }) => (finished.includes(name) ? finished.indexOf(name) : Infinity);
  return shown.sort((one, other) => place(one) - place(other));
}

/** Return a tab for each chapter; it opens with its first analysis, and lists the others. */
function chapters(groups, finished) {
  const named = groups.map(({ name, title, chapter }) => ({ name, title, chapter, isUnfinished: !finished.includes(name) }));
  return [...new Set(named.map(({ chapter }) => chapter))].map((chapter) => {
    const parts = named.filter((one) => one.chapter === chapter);
    return { name: (parts.find((one) => !one.isUnfinished) ?? parts[0]).name, title: chapter, parts };
  });
}

/** Return the site and the layer that are selected, if they are a depth of the curves. */
function depthOf({ capture: { sites, layers }, model }, choices) {
  const [site, layer] = [choices.get("site"), choices.get("layer")];
  const halves = sites.filter((one) => ["resid_pre", "resid_mid"].includes(one));
  const isKnown = Array.isArray(layers) ? layers.map(String).includes(layer) : layer !== null && layer < model.n_layers;
  return (halves.length ? halves : sites).includes(site) && isKnown ? { site, layer } : {};
}

function lead(run) {
  const measured = Object.keys(run.sets).length ? "Residual stream" : "Weights";
  return element("p.lead",
    run.name && element("strong", run.model.name),
    run.name && " · ",
    `${measured} of ${run.model.n_layers} layers, surveyed ${run.created.slice(0, 10)} · run `,
    element("code", run.run_id),
  );
}

/** Show that the script of a tab could not be loaded; a reload of the page loads it again. */
function unloadable(node) {
  const error = new Error("A script of this tab could not be loaded. Check that the service runs, and try again.");
  node.append(problem(error, () => location.reload()));
}

class Tabs {
  constructor(run, offered, signal) {
    this.run = run;
    this.offered = offered;
    this.parts = element("nav.parts", { "aria-label": "Analyses of this tab", hidden: true });
    this.view = element("div");
    this.panel = element("div", { id: "panel", role: "tabpanel", tabindex: 0 }, this.parts, this.view);
    this.stage = new Stage(this.view);
    signal.addEventListener("abort", () => this.stage.close());
    const tabs = offered.map((tab) => this.tab(tab));
    this.list = element("div.tabs", { role: "tablist", "aria-label": "Results of the run" }, tabs);
    this.list.addEventListener("keydown", (event) => this.move(event));
  }

  tab({ name, title: text }) {
    return element("a", { role: "tab", id: `tab-${name}`, href: this.addressOf(name), "aria-controls": "panel", "data-tab": name }, text);
  }

  /** Return the address of a tab, which keeps the contrast and the depth that are selected in another one. */
  addressOf(name, choices = new URLSearchParams()) {
    const kept = { contrast: choices.get("contrast"), ...depthOf(this.run, choices) };
    return addressOf(["runs", this.run.run_id, ...(name === "overview" ? [] : [name])], kept);
  }

  /** Show links to the analyses of a tab, if it has several. */
  showParts(parts, name, choices) {
    this.parts.hidden = parts.length < 2;
    this.parts.replaceChildren(...parts.map((part) =>
      element("a", { href: this.addressOf(part.name, choices), "aria-current": part.name === name ? "page" : null },
        part.isUnfinished ? `${part.title} (not finished)` : part.title),
    ));
  }

  /** Show the tab of an address, or a message if the run has no such tab. */
  async show(address) {
    this.address = address;
    const name = address.path[2] ?? "overview";
    const tab = this.offered.find((one) => one.name === name || one.parts?.some((part) => part.name === name));
    this.showParts(tab?.parts ?? [], name, address.choices);
    for (const node of this.list.children) {
      const isChosen = node.dataset.tab === tab?.name;
      node.href = this.addressOf(node.dataset.tab, address.choices);
      node.setAttribute("aria-selected", String(isChosen));
      node.tabIndex = isChosen || (!tab && node === this.list.firstChild) ? 0 : -1;
      if (isChosen) node.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    if (!tab || tab.parts?.find((part) => part.name === name)?.isUnfinished) {
      this.panel.removeAttribute("aria-labelledby");
      this.panel.setAttribute("aria-label", "Missing results");
      this.stage.show(`no ${name}`, (node) => node.append(this.missing(name)), address);
      return;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${tab.name}`);
    this.panel.setAttribute("aria-busy", "true");
    const opened = name in OPENERS ? await OPENERS[name]().catch(() => unloadable) : openSections;
    if (this.address !== address) return; // another tab was chosen while the script of this one was loading
    this.panel.removeAttribute("aria-busy");
    this.stage.show(name, (node, signal) => opened(node, signal, this.run, name), address);
  }

  missing(name) {
    if (this.run.unfinished.includes(name))
      return element("p.nothing", `The results of the analysis “${name}” were requested and are not finished. If no survey computes them now, run `,
        element("code", `theodolite run analyse ${this.run.run_id}`), ".");
    return element("p.nothing", `This run has no results of the analysis “${name}”: its spec does not request it, or the run is not complete.`);
  }

  /** Move between tabs: arrow keys wrap around, Home and End select the ends. Back has no step for these moves. */
  move(event) {
    const nodes = [...this.list.children];
    const index = nodes.indexOf(document.activeElement);
    const targets = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: nodes.length - 1, " ": index };
    if (index < 0 || !(event.key in targets)) return;
    event.preventDefault();
    const next = nodes.at(targets[event.key] % nodes.length);
    next.focus();
    replaceAddress(next.getAttribute("href"));
  }
}
