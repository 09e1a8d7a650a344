// The start: which view an address means, and what changes around it.

import { addressOf, readAddress, replaceAddress } from "./address.js";
import { element } from "./elements.js";
import { fetchPlotly } from "./figures.js";
import { openRun } from "./run.js";
import { RunList } from "./run-list.js";
import { Stage } from "./stage.js";
import { listenForToken } from "./token.js";

const main = document.getElementById("main");
const stage = new Stage(main);
const runList = new RunList(route);
let first = true;

// What is seldom opened first is fetched when it is.
const VIEWS = {
  compare: async () => (await import("./compare.js")).openComparison,
  jobs: async () => (await import("./jobs.js")).openJobs,
  new: async () => (await import("./new-survey.js")).openNewSurvey,
};

async function route() {
  const address = readAddress();
  const [view = "runs", name] = address.path;
  for (const link of document.querySelectorAll("[data-view]"))
    link.toggleAttribute("aria-current", false) ||
      (link.dataset.view === view && link.setAttribute("aria-current", "page"));
  runList.mark(view === "runs" ? name : null);
  if (["runs", "compare"].includes(view)) fetchPlotly();
  if (view === "runs" && name) show(`run ${name}`, openRun, address);
  else if (view === "runs") await showNewest();
  else if (view in VIEWS) {
    main.setAttribute("aria-busy", "true");
    const open = await VIEWS[view]();
    main.removeAttribute("aria-busy");
    if (readAddress().path[0] === view) show(view, open, readAddress());
  } else show("nowhere", nowhere, address);
}

function show(key, open, address) {
  const isNew = stage.show(key, open, address);
  if (!isNew) return;
  runList.close();
  runList.refresh();
  // Who reads with the ears hears what was opened; at the very first the page is read from its top.
  if (!first) main.focus({ preventScroll: true });
  if (!first) scrollTo(0, 0);
  first = false;
}

async function showNewest() {
  const runs = await runList.refresh();
  if (readAddress().path.length > 1 || !["runs", undefined].includes(readAddress().path[0])) return;
  const newest = runs?.find((run) => run.state === "complete") ?? runs?.[0];
  if (newest) replaceAddress(addressOf(["runs", newest.run_id]));
  else if (runs) show("none", nothingYet, readAddress());
  else show("unread", unread, readAddress());
}

function nothingYet(node) {
  document.title = "Theodolite";
  node.append(
    element("h1", {}, "No surveys yet"),
    element(
      "p",
      {},
      "This store is empty. A survey reads a model’s activations on sets of prompts and measures their geometry; there are three ways to make one:",
    ),
    element(
      "ul",
      { class: "ways" },
      element(
        "li",
        {},
        element("code", {}, "make demo"),
        " surveys a chat model of 135 million parameters, in a minute or two on a laptop.",
      ),
      element(
        "li",
        {},
        element("code", {}, "theodolite survey survey.yaml"),
        " surveys what a file asks for; give it the store that this service answers from.",
      ),
      element(
        "li",
        {},
        element("a", { href: "#/new" }, "New survey"),
        " sends one to the cluster, where this service has one.",
      ),
    ),
  );
  return null;
}

function unread(node) {
  node.append(element("h1", {}, "Theodolite"), element("p", {}, "The list of runs could not be read; it says why."));
  return null;
}

function nowhere(node) {
  document.title = "Nothing here · Theodolite";
  return ({ path }) => {
    node.replaceChildren(
      element("h1", {}, "Nothing here"),
      element("p", {}, `There is no view “${path.join("/")}”. `, element("a", { href: "#/" }, "Go to the runs.")),
    );
  };
}

// The address belongs to the views, so this link must not change it.
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
listenForToken(() => location.reload());
addEventListener("hashchange", route);
route();
