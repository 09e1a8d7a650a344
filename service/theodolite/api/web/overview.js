// The overview of a run: model, first figure, parity check, prompts, contrasts, results and provenance.

import { addressOf, choose } from "./address.js";
import { cards, copyFrom, element, fill, replaceControls, selection, table } from "./elements.js";
import { drawnFrame, opened, readSections, withLinks } from "./sections.js";
import { ask, ofRun, readAnalyses } from "./service.js";

const MANY_POSITIONS = 9;

/** Open the overview of a run; choices are `contrast`, `site` and `layer`. */
export function openOverview(node, signal, run) {
  const seen = run.analyses.includes("separation") ? new Picture(run, signal) : null;
  node.append(
    ...[
      run.state !== "complete" && unfinished(run),
      seen ? seen.node : run.analyses.length > 0 && firstFigure(run, signal),
      run.analyses.length > 0 && opened("All findings, with what they rest on", () => conclusion(run, signal)),
      opened("Model, prompts and provenance", () => aboutRun(run)),
    ].filter(Boolean),
  );
  return ({ choices }) => seen?.show(choices);
}

function aboutRun(run) {
  return [
    cards(modelFacts(run)),
    Object.keys(run.parity).length > 0 && parityCheck(run.parity, run.parity_notes),
    Object.keys(run.sets).length > 0 && prompts(run),
    Object.keys(run.spec.contrasts ?? {}).length > 0 && contrasts(run),
    Object.keys(run.results).length > 0 && results(run),
    provenance(run),
  ].filter(Boolean);
}

/** The picture of a contrast. The service draws it; a click on a curve selects a depth. */
class Picture {
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.contrasts = element("nav.parts", { "aria-label": "Contrasts", hidden: true });
    this.switches = element("div.switches");
    this.drawing = element("div");
    this.buttons = element("div.buttons");
    this.node = element("div", this.contrasts, this.drawing, element("div.under", this.switches, this.buttons));
    this.drawing.addEventListener("click", (event) => this.chooseDepth(event));
  }

  async show(choices) {
    this.pending?.abort();
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    const parameters = Object.fromEntries(["contrast", "site", "layer"].map((name) => [name, choices.get(name)]));
    const load = async () => {
      const overview = await ask(ofRun(this.run.run_id, "overview"), parameters, signal);
      // The service escapes every value in it, and the page's policy runs no script from it.
      const { body } = new DOMParser().parseFromString(overview.html, "text/html");
      this.redraw(overview, body.querySelector("[data-places]").dataset.places.split(" "));
      return [...body.childNodes];
    };
    // A later choice replaces the picture when it has arrived, so that the page does not jump.
    if (!this.drawing.firstChild) await fill(this.drawing, signal, load);
    else {
      this.drawing.setAttribute("aria-busy", "true");
      try {
        const made = await load();
        if (!signal.aborted) this.drawing.replaceChildren(...made);
      } catch (error) {
        if (!signal.aborted) await fill(this.drawing, signal, () => Promise.reject(error));
      }
      if (!signal.aborted) this.drawing.removeAttribute("aria-busy");
    }
  }

  redraw({ contrast, contrasts, site, layer, quoted }, places) {
    const depth = (place) => [place, `layer ${place.split(":")[1]} ${place.split(":")[0].replace(/^resid_/, "")}`];
    const python = [
      "import theodolite",
      `run = theodolite.Client("${location.origin}").run("${this.run.run_id}")`,
      `run.overview("${contrast}", site="${site}", layer=${layer})`,
    ].join("\n");
    const vector = addressOf(["runs", this.run.run_id, "separation"], { contrast });
    this.contrasts.hidden = contrasts.length < 2;
    this.contrasts.replaceChildren(...contrasts.map((name) =>
      element("a", { href: addressOf(["runs", this.run.run_id], { contrast: name }), "aria-current": name === contrast ? "page" : null }, name),
    ));
    replaceControls(this.switches, [
      selection("overview", "depth", places.map(depth), `${site}:${layer}`, choosePlace),
    ]);
    this.buttons.replaceChildren(copyButton("Copy sentence", quoted), copyButton("Copy Python", python), element("a", { href: vector }, "Separation in detail"));
  }

  chooseDepth(event) {
    const box = event.target.closest("[data-depths]");
    if (!box) return;
    const depths = box.dataset.depths.split(" ").map(Number);
    const { left, width } = box.getBoundingClientRect();
    const at = depths[0] + ((event.clientX - left) / width) * (depths.at(-1) - depths[0]);
    const distances = depths.map((depth) => Math.abs(depth - at));
    choosePlace(box.dataset.places.split(" ")[distances.indexOf(Math.min(...distances))]);
  }
}

function choosePlace(place) {
  const [site, layer] = place.split(":");
  choose({ site, layer });
}

function copyButton(label, text) {
  return element("button", { type: "button", onclick: ({ currentTarget }) => copyFrom(currentTarget, text, () => label) }, label);
}

function modelFacts({ model, sets, capture }) {
  const hasSets = Object.keys(sets).length > 0;
  return [
    ["family", model.text_model ? `${model.family} (${model.text_model})` : model.family],
    ...(model.dequantised_from ? [["weights", `dequantised from ${model.dequantised_from}`]] : []),
    ...(model.adapter ? [["adapter", adapterFacts(model)]] : []),
    ...(model.weights === "random" ? [["weights", `random, seed ${model.seed}`]] : []),
    ["layers × d_model", `${model.n_layers} × ${model.d_model}`],
    ["heads (key-value)", `${model.n_heads} (${model.n_kv_heads}${model.head_widths ? " in layer 0" : ""})`],
    ["d_head", model.head_widths ? `${[...new Set(model.head_widths)].join(" or ")}, by layer` : model.d_head],
    ...(hasSets
      ? [["dtype, attention kernel", `${model.dtype}, ${model.attention}`], ["sites", capture.sites.join(", ")]]
      : [["dtype of weights", model.dtype]]),
    ["dtype of statistics", "float64"],
  ];
}

function adapterFacts({ adapter, place }) {
  const [low, high] = adapter.ranks;
  const rank = high ? (low === high ? ` of rank ${low}` : ` of ranks ${low} to ${high}`) : "";
  return `${adapter.name}: ${adapter.method}${rank}, ${adapter.matrices} matrices changed, merged into ${place}`;
}

function unfinished(run) {
  if (run.analyses.length > 0) {
    const all = run.analyses.length + run.unfinished.length;
    return element("p.warn",
      `${run.analyses.length} of ${all} analyses are finished; the others appear here. If no survey computes them now, run `,
      element("code", `theodolite run analyse ${run.run_id}`), ".",
    );
  }
  const sum = (count) => Object.values(run.sets).reduce((total, facts) => total + facts[count], 0);
  const [done, all] = [sum("shards_committed"), sum("n_shards")];
  return element("p.warn",
    `This run is not complete; its state is ${run.state}: ${done} of ${all} shards. `,
    element("progress", { value: done, max: all || 1, "aria-label": "Captured shards" }),
    " The first results appear here when all are captured. If the survey was stopped, submit its spec again to continue it.",
  );
}

/** Return a section with the findings of the run, what they rest on, and what they do not say. */
function conclusion(run, signal) {
  const section = element("section");
  fill(section, signal, async () => {
    const { asked, found, rests_on: restsOn, limits } = await ask(ofRun(run.run_id, "conclusion"), {}, signal);
    const titles = Object.fromEntries((await readAnalyses()).map(({ name, title }) => [name, title]));
    const shown = ({ text, group }) =>
      element("li", withLinks(text, run), " ", element("a", { href: addressOf(["runs", run.run_id, group]) }, titles[group]));
    return [
      ...sentences("What was asked", asked),
      ...(found.length > 0 ? [element("h2", "What was found"), element("ol.found", found.map(shown))] : []),
      ...sentences("What it rests on", restsOn),
      ...sentences("What it does not say", limits),
    ];
  });
  return section;
}

function sentences(title, texts) {
  return texts.length > 0 ? [element("h2", title), element("ul", texts.map((text) => element("li", text)))] : [];
}

/** Return a section with the first figure of a run without contrasts. */
function firstFigure(run, signal) {
  const section = element("section", element("h2", "First results"));
  addFirstFigure(run, signal, section);
  return section;
}

async function addFirstFigure(run, signal, section) {
  try {
    const { items } = await ask(ofRun(run.run_id, "sections"), {}, signal);
    for (const group of items) {
      const [first] = (await readSections(run, group, signal)).flatMap((one) => [...one.figures, ...one.maps]);
      if (!first || signal.aborted) continue;
      section.append(drawnFrame(first, run, signal, 340).node);
      return;
    }
    section.remove();
  } catch {
    section.remove(); // the tab of the figure shows the error
  }
}

/** Return the parity certificate as sentences, as in the report. */
function parityCheck(parity, notes) {
  const source =
    parity.sites_known_by === "probe"
      ? "a probe of the loaded model, because Theodolite has no record of this model family"
      : "Theodolite’s record of this model family";
  return element("section",
    element("h2", "Parity check"),
    element("p", { class: parity.warning ? "warn" : "good" },
      "Largest relative error of a captured vector: ",
      element("strong", short(parity.max_error)),
      parity.bound === null ? "" : ` (allowed: ${short(parity.bound)})`,
      ". The reference is Hugging Face transformers on one prompt at a time, without ",
      `padding: ${parity.prompts} probe prompts, all sites and layers, in ${parity.dtype} on ${parity.device}. `,
      `The definition of the sites comes from ${source}. `,
      "Largest relative error of the identities between the sites (stream plus attention, stream plus MLP): ",
      `${short(parity.identity_error)}. `,
      parity.float32_blocks_max_error !== null &&
        `Largest relative error of the first blocks in float32: ${short(parity.float32_blocks_max_error)}. `,
      notes.map((note) => `${note} `).join(""),
      parity.warning && `${parity.warning}.`,
    ),
  );
}

function prompts(run) {
  const columns = ["set", "prompts", "quarantined", "tokens", "shared prefix tokens", "positions", "template"];
  const rows = Object.entries(run.sets).map(([name, set]) => [
    name,
    ...[set.n_samples, set.quarantined, set.tokens, set.shared_prefix].map((number) => number.toLocaleString("en")),
    set.positions.length < MANY_POSITIONS ? set.positions.join(", ") : "all",
    set.template,
  ]);
  return element("section",
    element("h2", "Prompts"),
    table(columns, rows, "Prompt sets", [1, 2, 3, 4]),
    run.notes.length > 0 && element("ul.warn", run.notes.map((note) => element("li", `${note}.`))),
  );
}

function contrasts(run) {
  const rows = Object.entries(run.contrast_sets).map(([name, sides]) => [
    element("a", { href: addressOf(["runs", run.run_id, "curves"], { contrast: name }) }, name),
    sides.positive,
    sides.negative,
    sides.paired ? "matched pairs" : "unpaired",
  ]);
  const columns = ["contrast", "positive", "negative", "pairing"];
  return element("section", element("h2", "Contrasts"), table(columns, rows, "Contrasts"));
}

function results(run) {
  const rows = Object.entries(run.results).map(([group, variables]) => [group, Object.keys(variables).join(", ")]);
  return element("section",
    element("h2", "Results"),
    element("p", Object.keys(run.results).flatMap((group) => [element("span.badge", group), " "])),
    element("details",
      element("summary", "Variables of each analysis"),
      element("div.wrapped", table(["analysis", "variables"], rows, "Analyses and their variables")),
    ),
  );
}

function provenance(run) {
  const versions = Object.entries(run.versions).map(([name, number]) => `${name} ${number}`);
  const compare = addressOf(["compare"], { run: run.run_id });
  return element("section",
    element("h2", "Provenance"),
    element("p.soft",
      "Model revision ",
      element("code", run.model.revision),
      ` · ${versions.join(", ")} · digest `,
      element("code", run.digest),
    ),
    element("details", { id: "spec" },
      element("summary", "Spec of this survey"),
      element("pre", { tabindex: 0 }, JSON.stringify(run.spec, null, 2)),
    ),
    element("p", element("a", { href: compare }, "Compare this run with other runs")),
  );
}

/** Return a number as `2.9e-6`. */
function short(number) {
  return number.toExponential(1).replace("e+0", "");
}
