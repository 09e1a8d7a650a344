// The prompts of a set with their held-out scores at one depth, and the scores of one prompt along depth.

import { addressOf, choose, readAddress } from "./address.js";
import { element, fill, replaceControls, selection, table, tick } from "./elements.js";
import { Frame } from "./figures.js";
import { ask, ofRun } from "./service.js";

const ROWS = 100;
const ORDERS = [["margin", "worst classified first"], ["-margin", "best classified first"], ["sample", "as in the set"]];
const NO_SCORES = [["sample", "as in the set"]];

/** Open the prompts; choices are `set`, `contrast`, `site`, `layer`, `order`, `text`, `from` and `prompt`. */
export function openPrompts(node, signal, run) {
  const view = new Prompts(run, signal);
  node.append(...view.nodes);
  return ({ choices }) => view.show(choices);
}

class Prompts {
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.textsShown = false; // the set may be harmful, so its texts wait for a click
    this.switches = element("div.switches");
    this.list = element("div");
    this.card = element("section.card", { "aria-label": "Scores of one prompt", hidden: true });
    this.frame = new Frame("Score along depth", signal, { height: 380 });
    this.search = element("input", { type: "search", id: "prompts-text", autocomplete: "off", maxlength: 200 });
    this.search.addEventListener("change", () => choose({ text: this.search.value || null, from: null, prompt: null }));
    this.nodes = [element("h2", "Prompts"), intro(), this.switches, this.card, this.list];
  }

  async show(choices) {
    this.pending?.abort(); // a slow answer to an earlier choice must not replace this one
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    this.choices = choices;
    const set = choices.get("set") ?? this.run.contrast_sets[choices.get("contrast")]?.positive ?? Object.keys(this.run.sets)[0];
    const own = Object.entries(this.run.contrast_sets).filter(([, one]) => [one.positive, one.negative].includes(set));
    this.search.value = choices.get("text") ?? "";
    this.redrawSwitches(set, own.map(([name]) => name));
    const parameters = {
      contrast: choices.get("contrast"),
      site: choices.get("site"),
      layer: choices.get("layer"),
      order: choices.get("order") ?? (own.length ? "margin" : "sample"),
      containing: choices.get("text"),
      limit: ROWS,
      cursor: choices.get("from"),
    };
    this.showPrompt(set, choices.get("prompt"), parameters.contrast);
    await fill(this.list, signal, async () => this.rows(set, await ask(ofRun(this.run.run_id, "prompts", set), parameters, signal)));
  }

  redrawSwitches(set, contrasts) {
    const { choices } = this;
    const { sites, layers: captured } = this.run.capture;
    const streams = sites.filter((site) => site !== "head_out");
    const numbers = Array.isArray(captured) ? captured : Array.from({ length: this.run.model.n_layers }, (_, index) => index);
    const best = ["", "of the largest AUROC"];
    const layers = [best, ...numbers.map(String)];
    const again = { from: null, prompt: null };
    replaceControls(this.switches, [
      selection("prompts", "set", Object.keys(this.run.sets), set, (value) => choose({ ...again, set: value, contrast: null, order: null })),
      contrasts.length > 1 && selection("prompts", "contrast", contrasts, choices.get("contrast") ?? contrasts[0], (value) => choose({ ...again, contrast: value })),
      contrasts.length > 0 && selection("prompts", "site", [best, ...streams], choices.get("site") ?? "", (value) => choose({ ...again, site: value || null })),
      contrasts.length > 0 && selection("prompts", "layer", layers, choices.get("layer") ?? "", (value) => choose({ ...again, layer: value || null })),
      selection("prompts", "order", contrasts.length ? ORDERS : NO_SCORES, choices.get("order") ?? "margin", (value) => choose({ ...again, order: value })),
      element("div.choice", element("label", { for: "prompts-text" }, "contains the text"), this.search),
      tick("prompts-shown", "show the texts", this.textsShown, (isOn) => {
        this.textsShown = isOn;
        this.show(this.choices);
      }),
      choices.get("from") && element("button", { type: "button", onclick: () => choose({ from: null, prompt: null }) }, "First page"),
    ]);
  }

  rows(set, { items, place, total, n_scored: scored, n_wrong: wrong, next }) {
    const words = (text) => (this.textsShown ? text ?? "not shown by this service" : element("span.soft", "hidden"));
    const number = (value) => (value === null ? "–" : value.toFixed(2));
    const body = items.map((item) => [
      place && item.score !== null ? this.linkTo(item.sample) : String(item.sample),
      words(item.text),
      String(item.n_tokens),
      number(item.score),
      number(item.margin),
      item.status === "ok" ? "" : `${item.status}: ${item.error}`,
    ]);
    const where = place
      ? `Scores along the direction of ${place.contrast} at ${place.site} of layer ${place.layer}, position ${place.position}.`
      : "These prompts have no held-out scores.";
    const count = (number) => number.toLocaleString("en");
    const selected = `${count(total)} prompts. Of the ${count(scored)} with a score, ${count(wrong)} lie on the other set’s side.`;
    return [
      element("p.soft", { role: "status" }, `${where} ${place ? selected : ""}`),
      element("div.wrapped", table(["prompt", "text", "tokens", "score", "margin", "status"], body, `Prompts of ${set}`, [2, 3, 4])),
      next && element("div.buttons",
        element("button", { type: "button", onclick: () => choose({ from: next, prompt: null }) }, "Next page"),
      ),
    ];
  }

  /** Return a link to the scores of a prompt along depth. */
  linkTo(sample) {
    const { path, choices } = readAddress();
    const chosen = new URLSearchParams(choices);
    chosen.set("prompt", sample);
    return element("a", { href: addressOf(path, chosen), title: `Scores of prompt ${sample} along depth` }, String(sample));
  }

  showPrompt(set, sample, contrast) {
    this.card.hidden = sample === null;
    if (sample === null) return;
    const heading = element("h2", `Prompt ${sample} of ${set}`);
    const words = element("p");
    this.card.replaceChildren(heading, words, this.frame.node);
    this.frame.rename("Held-out score along depth, with the scores of both sets", `${this.run.run_id}.${set}.${sample}`);
    this.frame.show(async (until) => {
      const { text, figure } = await ask(ofRun(this.run.run_id, "prompts", set, sample), { contrast }, until);
      words.textContent = this.textsShown ? text ?? "" : "";
      return figure;
    });
    if (this.opened !== sample) this.card.scrollIntoView({ block: "nearest" });
    this.opened = sample;
  }
}

function intro() {
  return element("p.soft",
    "The score of a prompt is the distance of its activation from the midpoint of the two sets, along the direction ",
    "of a contrast that was computed without this prompt, in pooled standard deviations. The margin is the score with ",
    "the sign of the prompt’s own set: a prompt with a negative margin is classified wrongly.",
  );
}
