// One head's card: its spectrum, its ranks, and the tokens at both ends of its leading singular vectors.

import { cards, element, fill, table } from "./elements.js";
import { Frame } from "./figures.js";
import { ask, ofRun } from "./service.js";

const SIDES = { qk: ["a query reads", "a key reads"], vo: ["is read of a token", "is written"] };
const FEW = { vectors: 5, tokens: 10 };

export class HeadCard {
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.name = element("h2", { id: "card-name", tabindex: -1 });
    this.body = element("div", { "aria-live": "polite" });
    this.frame = new Frame("Singular values, and the share of their sum that the first so many hold", signal, {
      height: 280,
    });
    this.node = element("div", {}, this.name, this.body, this.frame.node);
    this.tokens = element("div");
    this.node.append(this.tokens);
    this.isAsked = false;
    this.isWhole = false;
  }

  /** Show a head. */
  show(circuit, layer, head) {
    this.pending?.abort();
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    const name = `L${layer}H${head}`;
    this.name.textContent = `${name}, ${circuit.toUpperCase()} circuit`;
    const answer = ask(ofRun(this.run.run_id, "heads", layer, head), { circuit }, signal);
    this.frame.rename(
      `${name} ${circuit.toUpperCase()}: singular values, and the share of their sum that the first so many hold`,
      `${this.run.run_id}.${name}.${circuit}`,
    );
    answer.then(
      (card) => {
        this.frame.node.hidden = false;
        this.frame.show(async () => spectrum(card.singular_values));
        this.showTokens(card);
      },
      () => {
        this.frame.node.hidden = true;
        this.tokens.replaceChildren();
      },
    );
    fill(this.body, signal, async () => ranks(await answer));
    if (this.isAsked) this.focus();
    this.isAsked = false;
  }

  focus() {
    this.name.focus({ preventScroll: true });
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.name.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
  }

  showTokens(card) {
    if (!card.tokens.length) {
      this.tokens.replaceChildren(
        element(
          "p",
          { class: "soft" },
          "The survey did not look for the tokens of this head: it asked for no words, or this head is not among those it decoded.",
        ),
      );
      return;
    }
    const vectors = [...new Set(card.tokens.map((row) => row.vector))];
    const few = this.isWhole ? { vectors: Infinity, tokens: Infinity } : FEW;
    const rows = vectors
      .slice(0, few.vectors)
      .map((vector) => [
        `${vector + 1}: σ ${card.singular_values[vector].toPrecision(3)}`,
        ...["left", "right"].map((side) => tokenCell(card.tokens, vector, side, few.tokens)),
      ]);
    const caption = `Tokens of the leading singular vectors of ${card.name}`;
    const other = this.isWhole ? "Show fewer" : `Show all ${vectors.length} vectors, and all their tokens`;
    const toggle = () => {
      this.isWhole = !this.isWhole;
      this.showTokens(card);
      this.tokens.querySelector("button").focus();
    };
    this.tokens.replaceChildren(
      element("div", { class: "tokens" }, table(["vector", ...SIDES[card.circuit]], rows, { caption })),
      element("p", {}, element("button", { type: "button", onclick: toggle }, other)),
      element(
        "p",
        { class: "soft" },
        "Tokens are ranked by their raw dot product with a singular vector: first those at its positive end, then, dashed, those at its negative end. The sign of a vector is a convention; both of its sides share it. A dot stands for a space.",
      ),
    );
  }
}

function ranks(card) {
  const known = (number) => (number === null ? "not known" : number.toPrecision(3));
  const facts = [
    ["leading singular value", card.singular_values[0].toPrecision(3)],
    ["effective rank", known(card.effective_rank)],
    ["stable rank", known(card.stable_rank)],
    ["rank that covers 99 %", card.coverage_99],
  ];
  if (card.circuit === "vo") facts.push(["copying score", known(card.copying_score)]);
  return cards(facts);
}

function tokenCell(tokens, vector, side, count) {
  const at = (end) =>
    tokens.filter((row) => row.vector === vector && row.side === side && row.end === end).slice(0, count);
  const chips = (end, kind) =>
    at(end).map((row) =>
      element("span", { class: kind, title: `score ${row.score.toPrecision(3)}` }, visible(row.token)),
    );
  return element(
    "div",
    {},
    element("div", {}, chips("top", "token")),
    element("div", {}, chips("bottom", "token low")),
  );
}

/** Return a token with its spaces and line ends to be seen. */
function visible(token) {
  return token.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

/** Return the figure of a spectrum, as the report draws it. */
function spectrum(values) {
  const total = values.reduce((sum, value) => sum + value, 0) || 1;
  let sum = 0;
  const rank = values.map((_, index) => index + 1);
  const line = (y, name, color, dash, yaxis) => ({
    type: "scatter",
    mode: "lines",
    x: rank,
    y,
    name,
    yaxis,
    line: { color, width: 2, dash },
    hovertemplate: "%{y:.4g}",
  });
  const clear = "rgba(0,0,0,0)";
  return {
    data: [
      line(values, "singular value", "#8a63d2", "solid", "y"),
      line(
        values.map((value) => (sum += value) / total),
        "share of their sum",
        "#3b82c4",
        "dash",
        "y2",
      ),
    ],
    layout: {
      height: 280,
      margin: { l: 52, r: 52, t: 40, b: 44 },
      paper_bgcolor: clear,
      plot_bgcolor: clear,
      font: { family: "system-ui, sans-serif", size: 13 },
      hovermode: "x",
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", bgcolor: clear },
      xaxis: { title: { text: "rank" } },
      yaxis: { rangemode: "tozero" },
      yaxis2: { overlaying: "y", side: "right", range: [0, 1.02], dtick: 0.25, tickformat: ".0%", showgrid: false },
    },
  };
}
