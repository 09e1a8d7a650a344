// The held-out scores of both sets of a contrast at one depth, their prompts, and the scores of one prompt along depth.

import { addressOf, choose, readAddress } from "./address.js";
import { element, fill, replaceControls, selection, table, tick } from "./elements.js";
import { Frame } from "./figures.js";
import { ask, ofRun } from "./service.js";

const ROWS = 25;
const ORDERS = [["margin", "worst classified first"], ["-margin", "best classified first"], ["sample", "as in the set"]];
const NO_SCORES = [["sample", "as in the set"]];
const AGAIN = { from: null, prompt: null };

/** Open the prompts; choices are `contrast`, `site`, `layer`, `range`, `set`, `order`, `text`, `from` and `prompt`. */
export function openPrompts(node, signal, run) {
  const view = new Prompts(run, signal);
  node.append(...view.nodes);
  return ({ choices }) => view.show(choices);
}

class Prompts {
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.textsShown = false; // texts of built-in harmful prompts wait for a click
    this.heading = element("h2");
    this.sentence = element("p.headline", { role: "status" });
    this.hasScores = run.tables.includes("prompt_scores");
    this.swarm = new Frame("Held-out scores", signal, { height: 340 });
    this.swarm.listen("plotly_click", ({ points: [{ data, customdata }] }) => data.meta && choose({ prompt: `${data.meta.set}:${customdata}` }));
    this.swarm.listen("plotly_selected", (event) => event?.range && this.brushed(event.range.x));
    this.swarm.listen("plotly_deselect", () => this.choices.has("range") && choose({ ...AGAIN, range: null }));
    this.switches = element("div.switches.compact");
    this.list = element("div");
    this.card = element("section.card", { "aria-label": "Scores of one prompt", hidden: true });
    this.frame = new Frame("Score along depth", signal, { height: 380 });
    this.search = element("input", { type: "search", id: "prompts-text", autocomplete: "off", maxlength: 200 });
    this.search.addEventListener("change", () => choose({ ...AGAIN, text: this.search.value || null }));
    this.ends = ["low", "high"].map((id) => element("input", { type: "number", step: "any", id: `prompts-${id}` }));
    for (const end of this.ends) end.addEventListener("change", () => this.brush(...this.ends.map(({ value }) => value)));
    this.reading = howToRead();
    this.top = element("div", this.swarm.node, this.card);
    this.nodes = [this.heading, this.sentence, this.top, this.switches, this.list, this.reading];
  }

  async show(choices) {
    this.pending?.abort(); // a slow answer to an earlier choice must not replace this one
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    this.choices = choices;
    const all = Object.entries(this.run.contrast_sets);
    const set = choices.get("set") ?? (all.length ? null : Object.keys(this.run.sets)[0]);
    const own = all.filter(([, sides]) => !set || [sides.positive, sides.negative].includes(set)).map(([name]) => name);
    const contrast = choices.get("contrast") ?? own[0];
    const sides = this.run.contrast_sets[contrast];
    const [low, high] = (choices.get("range") ?? "").split(",");
    this.search.value = choices.get("text") ?? "";
    [this.ends[0].value, this.ends[1].value] = [low, high ?? ""];
    this.redrawSwitches(set, own, contrast);
    const isScored = this.hasScores && own.length > 0;
    const place = { contrast: choices.get("contrast"), site: choices.get("site"), layer: choices.get("layer") };
    this.showPrompt(choices.get("prompt"), set ?? sides?.positive, place.contrast);
    this.showSwarm(sides, isScored, { ...place, contrast: set ? contrast : place.contrast });
    const parameters = {
      ...(isScored ? { ...place, low: low || null, high: high || null } : {}),
      order: choices.get("order") ?? (isScored ? "margin" : "sample"),
      containing: choices.get("text"),
      limit: ROWS,
      cursor: choices.get("from"),
    };
    const path = ofRun(this.run.run_id, "prompts", ...(set ? [set] : []));
    await fill(this.list, signal, async () => this.rows(set, await ask(path, parameters, signal)));
  }

  /** Select the prompts with scores between two ends, each a number as a text, or empty. */
  brush(low, high) {
    choose({ ...AGAIN, range: low || high ? `${low},${high}` : null });
  }

  /** Select the prompts in a range of the figure; Plotly also reports the range that it draws from the address. */
  brushed(range) {
    const ends = rounded(range);
    if (String(ends) !== String(rounded(this.drawnRange))) this.brush(...ends);
  }

  redrawSwitches(set, contrasts, contrast) {
    const { choices } = this;
    const { sites, layers: captured } = this.run.capture;
    const streams = sites.filter((site) => site !== "head_out");
    const numbers = Array.isArray(captured) ? captured : Array.from({ length: this.run.model.n_layers }, (_, index) => index);
    const best = ["", "of the best separation"];
    const hasScores = this.hasScores && contrasts.length > 0;
    const both = Object.keys(this.run.contrast_sets).length > 0 && ["", "both of the contrast"];
    const field = (input, label) => element("div.choice", element("label", { for: input.id }, label), input);
    const listed = set ? [set] : Object.values(this.run.contrast_sets[contrast] ?? {});
    replaceControls(this.switches, [
      contrasts.length > 1 && selection("prompts", "contrast", contrasts, contrast, (value) => choose({ ...AGAIN, contrast: value, range: null })),
      hasScores && selection("prompts", "site", [best, ...streams], choices.get("site") ?? "", (value) => choose({ ...AGAIN, site: value || null, range: null })),
      hasScores && selection("prompts", "layer", [best, ...numbers.map(String)], choices.get("layer") ?? "", (value) => choose({ ...AGAIN, layer: value || null, range: null })),
      hasScores && field(this.ends[0], "score from"),
      hasScores && field(this.ends[1], "score to"),
      hasScores && choices.has("range") && element("button", { type: "button", onclick: () => choose({ ...AGAIN, range: null }) }, "All scores"),
      selection("prompts", "set", [both, ...Object.keys(this.run.sets)].filter(Boolean), set ?? "", (value) => choose({ ...AGAIN, set: value || null, contrast: this.contrastOf(value), order: null })),
      selection("prompts", "order", hasScores ? ORDERS : NO_SCORES, choices.get("order") ?? "margin", (value) => choose({ ...AGAIN, order: value })),
      field(this.search, "contains the text"),
      listed.some((name) => this.isFolded(name)) && tick("prompts-shown", "show the texts", this.textsShown, (isOn) => {
        this.textsShown = isOn;
        this.show(this.choices);
      }),
    ]);
  }

  /** Return the chosen contrast if a set is in it or no set is chosen, or else null. */
  contrastOf(set) {
    const chosen = this.choices.get("contrast");
    const { positive, negative } = this.run.contrast_sets[chosen] ?? {};
    return !set || [positive, negative].includes(set) ? chosen : null;
  }

  /** Return whether the texts of a set wait for a click. */
  isFolded(set) {
    return this.run.spec.prompts[set]?.source === "builtin:harmful";
  }

  isHidden(set) {
    return this.isFolded(set) && !this.textsShown;
  }

  /** Draw the scores of both sets, with the range that is selected, and the prompt whose card is open. */
  showSwarm(sides, hasScores, place) {
    this.heading.textContent = sides ? `${sides.positive} against ${sides.negative}` : "Prompts";
    this.sentence.hidden = this.swarm.node.hidden = this.reading.hidden = !hasScores;
    if (!hasScores) return;
    this.swarm.show(async (until) => {
      const key = JSON.stringify(place);
      if (this.drawn?.key !== key) this.drawn = { key, ...(await ask(ofRun(this.run.run_id, "scores"), place, until)) };
      const { place: found, sentence, figure } = this.drawn;
      this.sentence.textContent = sentence;
      const where = `layer ${found.layer} ${found.site.replace(/^resid_/, "")}`;
      this.swarm.rename(`Held-out scores along “${found.contrast}” at ${where}, position ${found.position}`, `${this.run.run_id}.scores.${found.contrast}`);
      return { data: figure.data, layout: { ...figure.layout, ...this.marks(figure) } };
    });
  }

  /** Return the layout of the range that is selected, and of the prompt whose card is open. */
  marks({ data, layout }) {
    const given = this.choices.get("range")?.split(",");
    const [low, high] = layout.xaxis.range.map((end, index) => (given?.[index] ? Number(given[index]) : end));
    this.drawnRange = given ? [low, high] : [];
    const [set = this.choices.get("set"), sample] = namedPrompt(this.choices.get("prompt"));
    const points = data.find((trace) => trace.meta && (trace.meta.set === set || !set));
    const at = points?.customdata.indexOf(Number(sample ?? -1)) ?? -1;
    const bgcolor = getComputedStyle(this.swarm.plot).backgroundColor;
    const opened = at >= 0 && { x: points.x[at], y: points.y[at], text: `prompt ${sample}`, ax: 0, ay: points.y[at] > 0 ? -28 : 28, bgcolor };
    const [y0, y1] = layout.yaxis.range;
    return {
      selections: given ? [{ type: "rect", xref: "x", yref: "y", x0: low, x1: high, y0, y1, line: layout.newselection.line }] : [],
      annotations: [...layout.annotations, ...(opened ? [opened] : [])],
    };
  }

  rows(set, { items, place, total, n_scored: scored, n_wrong: wrong, next }) {
    const words = ({ set: own = set, text }) => (this.isHidden(own) ? element("span.soft", "hidden") : text ?? "not shown by this service");
    const number = (value) => (value === null ? "–" : value.toFixed(2));
    const body = items.map((item) => [
      this.nameOf(item, place, set),
      words(item),
      String(item.n_tokens),
      number(item.score),
      number(item.margin),
      item.status === "ok" ? "" : `${item.status}: ${item.error}`,
    ]);
    const count = (number) => number.toLocaleString("en");
    const selected = place
      ? `${count(total)} prompts. Of the ${count(scored)} with a score, ${count(wrong)} lie on the other set’s side.`
      : "These prompts have no held-out scores.";
    const { positive, negative } = this.run.contrast_sets[place?.contrast] ?? {};
    const caption = `Prompts of ${set ?? (place ? `${positive} and ${negative}` : "both sets")}`;
    return [
      element("p.soft", { role: "status" }, selected),
      element("div.wrapped.listed", table(["prompt", "text", "tokens", "score", "margin", "status"], body, caption, [2, 3, 4])),
      element("div.buttons",
        this.choices.get("from") && element("button", { type: "button", onclick: () => choose(AGAIN) }, "First page"),
        next && element("button", { type: "button", onclick: () => choose({ from: next, prompt: null }) }, "Next page"),
      ),
    ];
  }

  /** Return the name of a prompt, which links to its scores along depth if it has some. */
  nameOf({ set, side, sample, score }, place, chosen) {
    const text = set ? [element(`span.side.${side}`), `${set} ${sample}`] : [String(sample)];
    if (!place || score === null) return element("span", text);
    const { path, choices } = readAddress();
    choices.set("prompt", `${set ?? chosen}:${sample}`);
    return element("a", { href: addressOf(path, choices), title: `Scores of prompt ${sample} along depth` }, text);
  }

  showPrompt(prompt, usual, contrast) {
    this.card.hidden = prompt === null;
    this.top.classList.toggle("docked", prompt !== null && !this.swarm.node.hidden);
    if (prompt === null) return;
    const [set = usual, sample] = namedPrompt(prompt);
    const heading = element("h2", `Prompt ${sample} of ${set}`);
    const words = element("p");
    this.card.replaceChildren(heading, words, this.frame.node);
    this.frame.rename("Held-out score along depth, with the scores of both sets", `${this.run.run_id}.${set}.${sample}`);
    this.frame.show(async (until) => {
      const { text, figure } = await ask(ofRun(this.run.run_id, "prompts", set, sample), { contrast }, until);
      words.textContent = this.isHidden(set) ? "" : text ?? "";
      return figure;
    });
    if (this.opened !== prompt) this.card.scrollIntoView({ block: "nearest" });
    this.opened = prompt;
  }
}

/** Return the set and the sample of a prompt in an address, such as `harmful:3`; `3` has no set. */
function namedPrompt(prompt) {
  const [sample, set] = (prompt ?? "").split(":").reverse();
  return [set, sample || undefined];
}

function rounded(ends) {
  return ends.toSorted((one, other) => one - other).map((end) => end.toFixed(2));
}

function howToRead() {
  return element("details",
    element("summary", "How to read the figure"),
    element("p",
      "Each point is a prompt. Its score is the distance of its activation from the midpoint of the two sets, along the ",
      "direction of a contrast that was computed without this prompt, in pooled standard deviations. The margin is the ",
      "score with the sign of the prompt’s own set: a prompt with a negative margin is classified wrongly. Points with ",
      "almost the same score stand on each other. Lines join pairs: all of up to 100 pairs, or else at most 100 of ",
      "those in the wrong order, the farthest apart. Drag over the figure, or enter two scores, to list the prompts ",
      "between them. Click a point for its score along depth.",
    ),
  );
}
