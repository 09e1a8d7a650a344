// The card of one head: its spectrum, its ranks, and the tokens at both ends of its leading singular vectors.

import { ABOUT_TOKENS, spectrum, tokenTable } from "./circuit.js";
import { cards, element, fill } from "./elements.js";
import { Frame } from "./figures.js";
import { ask, ofRun } from "./service.js";

const FEW = { vectors: 5, tokens: 10 };

export class HeadCard {
  /** `offer` is called with the offsets of each shown head. */
  constructor(run, signal, offer) {
    this.run = run;
    this.offer = offer;
    this.signal = signal;
    this.name = element("h2", { id: "card-name", tabindex: -1 });
    this.body = element("div", { "aria-live": "polite" });
    this.frame = new Frame("Singular values, and their cumulative share of the sum", signal, { height: 280 });
    this.tokens = element("div");
    this.node = element("div", this.name, this.body, this.frame.node, this.tokens);
    this.isSelected = false;
    this.isWhole = false;
  }

  /** Show a head; the offset is query position minus key position. */
  show(offset, circuit, layer, head) {
    this.pending?.abort();
    this.pending = new AbortController();
    const signal = AbortSignal.any([this.signal, this.pending.signal]);
    const name = `L${layer}H${head}`;
    const at = offset === "0" ? "" : ` at offset ${offset}`;
    this.name.textContent = `${name}, ${circuit.toUpperCase()} circuit${at}`;
    const answer = ask(ofRun(this.run.run_id, "heads", layer, head), { circuit, offset }, signal);
    this.frame.rename(
      `${name} ${circuit.toUpperCase()}${at}: singular values, and their cumulative share of the sum`,
      `${this.run.run_id}.${name}.${circuit}`,
    );
    answer.then(
      (card) => {
        this.frame.node.hidden = false;
        this.frame.show(async () => spectrum(card.singular_values));
        this.showTokens(card);
        this.offer(card.offsets);
      },
      () => {
        this.frame.node.hidden = true;
        this.tokens.replaceChildren();
      },
    );
    fill(this.body, signal, async () => ranks(await answer));
    if (this.isSelected) this.focus();
    this.isSelected = false;
  }

  focus(behavior = "smooth") {
    this.name.focus({ preventScroll: true });
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.name.scrollIntoView({ block: "start", behavior: calm ? "instant" : behavior });
  }

  showTokens(card) {
    if (!card.tokens.length) {
      this.tokens.replaceChildren(
        element("p.soft", "The run has no tokens for this head: its spec does not request the analysis “words”, or that analysis did not decode this head."),
      );
      return;
    }
    const vectors = [...new Set(card.tokens.map((row) => row.vector))];
    const few = this.isWhole ? { vectors: Infinity, tokens: Infinity } : FEW;
    const leading = card.singular_values.slice(0, Math.min(vectors.length, few.vectors));
    const values = leading.map((value) => value.toPrecision(3));
    const tokensAt = (vector, side, end, against) => {
      const isShown = (row) =>
        row.vector === vector && row.side === side && row.end === end && row.against === against;
      return card.tokens.filter(isShown).slice(0, few.tokens);
    };
    const isUntied = card.tokens.some((row) => row.against === "unembedding");
    const caption = `Tokens of the leading singular vectors of ${card.name}`;
    const other = this.isWhole ? "Show fewer" : `Show all ${vectors.length} vectors with all their tokens`;
    const toggle = () => {
      this.isWhole = !this.isWhole;
      this.showTokens(card);
      this.tokens.querySelector("button").focus();
    };
    this.tokens.replaceChildren(
      tokenTable(card.circuit, values, tokensAt, caption, isUntied),
      element("p", element("button", { type: "button", onclick: toggle }, other)),
      element("p.soft", ABOUT_TOKENS),
    );
  }
}

function ranks(card) {
  const known = (number) => (number === null ? "missing" : number.toPrecision(3));
  const facts = [
    ["leading singular value", card.singular_values[0].toPrecision(3)],
    ["effective rank", known(card.effective_rank)],
    ["stable rank", known(card.stable_rank)],
    ["number of singular values that cover 99 % of their sum", card.coverage_99],
  ];
  if (card.circuit === "ov") facts.unshift(...written(card), ["copying score", known(card.copying_score)]);
  return cards(facts);
}

/** Return the share of the difference of each contrast that the head writes, with its test over all heads. */
function written({ written: contrasts }) {
  return Object.entries(contrasts).map(([contrast, { share, z, p_family: p }]) => [
    `writes of the difference “${contrast}”`,
    `${(100 * share).toFixed(1)} %, ${p === null ? "not tested" : `z ${z.toFixed(1)}, p ${p.toPrecision(2)} over all parts`}`,
  ]);
}
