// The overview of a run: model, first figure, parity check, prompts, contrasts, results and provenance.

import { addressOf } from "./address.js";
import { cards, element, fill, table } from "./elements.js";
import { Frame } from "./figures.js";
import { drawnFrame, readSections, withLinks } from "./sections.js";
import { ask, ofRun, readAnalyses } from "./service.js";
import { showAbsoluteDepth } from "./switches.js";

const MANY_POSITIONS = 9;

/** Open the overview of a run. */
export function openOverview(node, signal, run) {
  node.append(
    ...[
      run.state !== "complete" && unfinished(run),
      run.analyses.length > 0 && conclusion(run, signal),
      run.analyses.length > 0 && firstFigure(run, signal),
      cards(modelFacts(run)),
      Object.keys(run.parity).length > 0 && parityCheck(run.parity, run.parity_notes),
      Object.keys(run.sets).length > 0 && prompts(run),
      Object.keys(run.spec.contrasts ?? {}).length > 0 && contrasts(run),
      Object.keys(run.results).length > 0 && results(run),
      provenance(run),
    ].filter(Boolean),
  );
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
    return element("p.warn",
      "Some results that were requested of this run are not finished. If no survey computes them now, run ",
      element("code", `theodolite run analyse ${run.run_id}`), ".",
    );
  }
  const committed = ([name, facts]) => `${name} ${facts.shards_committed} of ${facts.n_shards}`;
  const done = Object.entries(run.sets).map(committed);
  return element("p.warn",
    `This run is not complete; its state is ${run.state}. The survey writes the results at its end. `,
    done.length > 0 && `Shards committed: ${done.join(", ")}. `,
    "Submit the same spec again to continue a stopped survey.",
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

/** Return a section with the debiased cosine of the first contrast along depth, or else with the run's first figure. */
function firstFigure(run, signal) {
  const contrast = run.contrasts[0];
  const heading = contrast ? `Debiased cosine of means, ${contrast}` : "First results";
  const section = element("section", element("h2", heading));
  if (contrast) {
    const caption = `${contrast}: debiased cosine of the two sets’ means along depth, with its 95 % interval`;
    const frame = new Frame(caption, signal, { name: `${run.run_id}.cosine_of_means_debiased`, height: 340 });
    const facts = element("p.soft");
    frame.show(async (until) => {
      const parameters = { run: run.run_id, statistic: "cosine_of_means_debiased", contrast };
      const { figure, milestones } = await ask("/v1/compare", parameters, until);
      facts.textContent = milestoneText(milestones[0]);
      Object.assign(figure.layout, { height: 340, showlegend: false });
      figure.layout.margin.t = 12;
      showAbsoluteDepth(figure);
      return figure;
    });
    const curves = addressOf(["runs", run.run_id, "curves"], { contrast });
    section.append(frame.node, facts, element("p", element("a", { href: curves }, "All curves of this contrast")));
  } else addFirstFigure(run, signal, section);
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

/** Return sentences about the smallest cosine, with its simultaneous 95 % interval, and where the sets are separated. */
function milestoneText(row) {
  const depth = (label) => `layer ${label.replace("-", " ")}`;
  const { least_cosine_low: low, least_cosine_high: high } = row;
  const interval = low === null ? "" : ` [${low.toFixed(4)}, ${high.toFixed(4)}]`;
  const cosine =
    row.least_cosine === null
      ? "The debiased cosine is missing at all depths: with this number of prompts, the noise is larger than the means."
      : `Smallest debiased cosine: ${row.least_cosine.toFixed(4)}${interval} at ${depth(row.least_cosine_at)}.`;
  const nearest = row.largest_auroc_low === null ? "" : ` (largest lower end: ${row.largest_auroc_low.toFixed(3)})`;
  const separation = {
    "not measured": "Separation was not measured.",
    never: `The simultaneous AUROC interval does not stay above 0.95${nearest}.`,
  };
  return `${cosine} ${separation[row.separates_at] ?? `From ${depth(row.separates_at)} on, the simultaneous AUROC interval lies above 0.95.`}`;
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
  const rows = Object.entries(run.spec.contrasts).map(([name, sides]) => [
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
