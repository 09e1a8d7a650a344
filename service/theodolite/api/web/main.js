// The entry point: selects the view of an address, and updates the navigation.

import { addressOf, readAddress, replaceAddress } from "./address.js";
import { element, problem } from "./elements.js";
import { fetchPlotly } from "./figures.js";
import { openRun } from "./run.js";
import { RunList } from "./run-list.js";
import { Stage } from "./stage.js";
import { listenForToken } from "./token.js";

const main = document.getElementById("main");
const stage = new Stage(main);
const runList = new RunList(route);
document.addEventListener("runs-changed", () => runList.refresh());
let first = true;

// These views are loaded when they are opened.
const VIEWS = {
  compare: async () => (await import("./compare.js")).openComparison,
  jobs: async () => (await import("./jobs.js")).openJobs,
  runs: async () => (await import("./run-table.js")).openRunTable,
  new: async () => (await import("./new-survey.js")).openNewSurvey,
};

async function route() {
  const address = readAddress();
  const isHome = address.path.length === 0;
  const [view = "runs", name] = address.path;
  for (const link of document.querySelectorAll("[data-view]"))
    link.ariaCurrent = link.dataset.view === view ? "page" : null;
  runList.mark(view === "runs" ? name : null);
  if (["runs", "compare"].includes(view)) fetchPlotly();
  if (view === "runs" && name) show(`run ${name}`, openRun, address);
  else if (isHome) await showNewest();
  else if (view in VIEWS) {
    main.setAttribute("aria-busy", "true");
    const open = await VIEWS[view]().catch(() => null);
    main.removeAttribute("aria-busy");
    if (readAddress().path[0] !== view) return;
    if (open) show(view, open, readAddress());
    else show(`unloadable ${view}`, unloadableView, readAddress());
  } else show("not found", notFoundView, address);
}

function show(key, open, address) {
  const isNew = stage.show(key, open, address);
  if (!isNew) return;
  runList.close();
  runList.refresh();
  // Screen readers then read the opened view; the first view is read from the top of the page.
  if (!first) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  first = false;
}

async function showNewest() {
  const runs = await runList.refresh();
  if (readAddress().path.length > 0) return;
  const newest = runs?.find((run) => run.state === "complete") ?? runs?.[0];
  if (newest) replaceAddress(addressOf(["runs", newest.run_id]));
  else if (runs) show("empty store", emptyStoreView, readAddress());
  else show("unreadable store", unreadableStoreView, readAddress());
}

function emptyStoreView(node) {
  document.title = "Theodolite";
  node.append(
    element("h1", "No surveys yet"),
    element("p", "This store has no runs. A survey captures a model’s activations on prompt sets and measures their geometry. There are three ways to start a survey:"),
    element("ul.ways",
      element("li",
        element("code", "make demo"),
        " surveys a chat model of 135 million parameters; it takes a minute or two on a laptop.",
      ),
      element("li",
        element("code", "theodolite survey survey.yaml"),
        " runs the survey of a spec file; pass the store of this service with --store.",
      ),
      element("li",
        element("a", { href: "#/new" }, "New survey"),
        " submits a survey to the cluster, if this service has one.",
      ),
    ),
  );
}

function unreadableStoreView(node) {
  node.append(element("h1", "Theodolite"), element("p", "The list of runs could not be read. See the error in the list."));
}

function unloadableView(node) {
  document.title = "View not loaded · Theodolite";
  const error = new Error("A script of this view could not be loaded. Check that the service runs, and try again.");
  node.append(element("h1", "View not loaded"), problem(error, () => location.reload()));
}

function notFoundView(node) {
  document.title = "View not found · Theodolite";
  return ({ path }) => {
    node.replaceChildren(
      element("h1", "View not found"),
      element("p", `There is no view “${path.join("/")}”. `, element("a", { href: "#/runs" }, "Open the list of runs.")),
    );
  };
}

// Views own the address, so this link must not change it.
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
listenForToken(() => location.reload());
addEventListener("hashchange", route);
route();
