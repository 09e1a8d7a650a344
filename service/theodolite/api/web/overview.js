// A run at a glance: what was surveyed, whether it is right, and the first picture.

import { addressOf } from "./address.js";
import { cards, element, table } from "./elements.js";
import { Frame } from "./figures.js";
import { drawnFrame, readSections } from "./sections.js";
import { ask, ofRun } from "./service.js";

const MANY_POSITIONS = 9;

/** Open the overview of a run. */
export function openOverview(node, signal, run) {
  node.append(
    ...[
      run.state !== "complete" && unfinished(run),
      cards(modelFacts(run)),
      run.state === "complete" && firstPicture(run, signal),
      Object.keys(run.parity).length > 0 && certificate(run.parity),
      Object.keys(run.sets).length > 0 && prompts(run),
      Object.keys(run.spec.contrasts ?? {}).length > 0 && contrasts(run),
      Object.keys(run.results).length > 0 && results(run),
      provenance(run),
    ].filter(Boolean),
  );
  return null;
}

function modelFacts({ model, sets, capture }) {
  const hasSets = Object.keys(sets).length > 0;
  return [
    ["family", model.family],
    ["layers × d_model", `${model.n_layers} × ${model.d_model}`],
    ["heads (key-value)", `${model.n_heads} (${model.n_kv_heads})`],
    ["d_head", model.d_head],
    ...(hasSets
      ? [
          ["arithmetic", `${model.dtype}, ${model.attention}`],
          ["sites", capture.sites.join(", ")],
        ]
      : [["weights", model.dtype]]),
    ["statistics", "float64"],
  ];
}

function unfinished(run) {
  const done = Object.entries(run.sets).map(
    ([name, facts]) => `${name} ${facts.shards_committed} of ${facts.n_shards}`,
  );
  return element(
    "p",
    { class: "warn" },
    `This run is not complete but ${run.state}: its results come when its survey has ended. `,
    done.length > 0 && `Shards committed: ${done.join(", ")}. `,
    "The same survey again goes on where it stopped.",
  );
}

/** Make the picture that says most of a run: its first contrast along depth, or else the first that it has. */
function firstPicture(run, signal) {
  const section = element("section", {}, element("h2", {}, "At a glance"));
  if (run.contrasts.length) {
    const contrast = run.contrasts[0];
    const caption = `${contrast}: cosine of the two sets’ means along depth, noise taken out, with its 95 % interval`;
    const frame = new Frame(caption, signal, { name: `${run.run_id}.cosine_of_means_debiased`, height: 340 });
    const said = element("p", { class: "soft" });
    frame.show(async (until) => {
      const parameters = { run: run.run_id, statistic: "cosine_of_means_debiased", contrast };
      const { figure, milestones } = await ask("/v1/compare", parameters, until);
      said.textContent = milestone(milestones[0]);
      return {
        ...figure,
        layout: { ...figure.layout, height: 340, showlegend: false, margin: { ...figure.layout.margin, t: 12 } },
      };
    });
    section.append(
      frame.node,
      said,
      element(
        "p",
        {},
        element("a", { href: addressOf(["runs", run.run_id, "curves"], { contrast }) }, "All curves of this contrast"),
      ),
    );
  } else firstFigure(run, signal, section);
  return section;
}

async function firstFigure(run, signal, section) {
  try {
    const { items } = await ask(ofRun(run.run_id, "sections"), {}, signal);
    for (const group of items) {
      const found = (await readSections(run, group, signal)).flatMap((one) => [...one.figures, ...one.maps])[0];
      if (!found || signal.aborted) continue;
      section.append(drawnFrame(found, run, signal, 340).node);
      return;
    }
    section.remove();
  } catch {
    section.remove(); // the tab that has the figure says what is wrong with it
  }
}

function milestone(row) {
  const least =
    row.least_cosine === null
      ? "The debiased cosine is not resolved with so few prompts"
      : `It is least at ${row.least_cosine_at}, ${row.least_cosine.toFixed(4)}`;
  const apart = {
    "not measured": "whether unseen prompts can be told apart was not measured",
    never: "nowhere are unseen prompts told apart with an AUROC that is surely 0.95 or more",
  };
  return `${least}; ${apart[row.separates_at] ?? `unseen prompts are told apart with an AUROC that is surely 0.95 or more from ${row.separates_at} on`}.`;
}

/** Say the parity certificate in words, as the report does. */
function certificate(parity) {
  const known =
    parity.sites_known_by === "probe"
      ? "a probe of the loaded model found them, for its family is not in the table"
      : "the table of families says";
  return element(
    "section",
    {},
    element("h2", {}, "Is it right?"),
    element(
      "p",
      { class: parity.warning ? "warn" : "good" },
      "Captured activations agree with plain, unpadded, one-at-a-time Hugging Face to a relative error of ",
      element("strong", {}, short(parity.max_error)),
      ` per vector (allowed ${short(parity.bound)}), measured on ${parity.prompts} probe prompts at every site and layer, `,
      `in ${parity.dtype} on ${parity.device}. The sites are where ${known}: the sums that tie them together hold to `,
      `${short(parity.identity_error)}. `,
      parity.float32_blocks_max_error !== null &&
        `The first blocks, run in float32, agree to ${short(parity.float32_blocks_max_error)}. `,
      parity.warning && `${parity.warning}.`,
    ),
  );
}

function prompts(run) {
  const columns = ["set", "prompts", "left out", "tokens", "shared first tokens", "positions", "template"];
  const rows = Object.entries(run.sets).map(([name, set]) => [
    name,
    ...[set.n_samples, set.quarantined, set.tokens, set.shared_prefix].map((number) => number.toLocaleString("en")),
    set.positions.length < MANY_POSITIONS ? set.positions.join(", ") : "all",
    set.template,
  ]);
  return element(
    "section",
    {},
    element("h2", {}, "Prompts"),
    table(columns, rows, { caption: "Prompt sets", numbers: [1, 2, 3, 4] }),
    run.notes.length > 0 &&
      element(
        "ul",
        { class: "warn" },
        run.notes.map((note) => element("li", {}, `${note}.`)),
      ),
  );
}

function contrasts(run) {
  const rows = Object.entries(run.spec.contrasts).map(([name, sides]) => [
    element("a", { href: addressOf(["runs", run.run_id, "curves"], { contrast: name }) }, name),
    sides.positive,
    sides.negative,
    sides.paired ? "matched pairs" : "unpaired",
  ]);
  const columns = ["contrast", "positive", "negative", "prompts are"];
  return element("section", {}, element("h2", {}, "Contrasts"), table(columns, rows, { caption: "Contrasts" }));
}

function results(run) {
  const rows = Object.entries(run.results).map(([group, variables]) => [group, Object.keys(variables).join(", ")]);
  return element(
    "section",
    {},
    element("h2", {}, "Results"),
    element(
      "p",
      {},
      Object.keys(run.results).flatMap((group) => [element("span", { class: "badge" }, group), " "]),
    ),
    element(
      "details",
      {},
      element("summary", {}, "What each of them holds"),
      element(
        "div",
        { class: "wrapped" },
        table(["group", "variables"], rows, { caption: "Result groups and their variables" }),
      ),
    ),
  );
}

function provenance(run) {
  const versions = Object.entries(run.versions).map(([name, number]) => `${name} ${number}`);
  return element(
    "section",
    {},
    element("h2", {}, "Provenance"),
    element(
      "p",
      { class: "soft" },
      "Model revision ",
      element("code", {}, run.model.revision),
      ` · ${versions.join(", ")} · digest `,
      element("code", {}, run.digest),
    ),
    element(
      "details",
      { id: "spec" },
      element("summary", {}, "The spec that asked for this"),
      element("pre", { tabindex: 0 }, JSON.stringify(run.spec, null, 2)),
    ),
    element(
      "p",
      {},
      element("a", { href: addressOf(["compare"], { run: run.run_id }) }, "Compare this run with others"),
    ),
  );
}

/** Return a number as `2.9e-6`. */
function short(number) {
  return number.toExponential(1).replace("e+0", "");
}
