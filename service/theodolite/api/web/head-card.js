// One head's card: its spectrum, its ranks, and the tokens at both ends of its leading singular vectors.

import { ABOUT_TOKENS, spectrum, tokenTable } from "./circuit.js";
import { cards, element, fill } from "./elements.js";
import { Frame } from "./figures.js";
import { ask, ofRun } from "./service.js";

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
    const values = card.singular_values
      .slice(0, Math.min(vectors.length, few.vectors))
      .map((value) => value.toPrecision(3));
    const tokensAt = (vector, side, end) =>
      card.tokens
        .filter((row) => row.vector === vector && row.side === side && row.end === end)
        .slice(0, few.tokens);
    const caption = `Tokens of the leading singular vectors of ${card.name}`;
    const other = this.isWhole ? "Show fewer" : `Show all ${vectors.length} vectors, and all their tokens`;
    const toggle = () => {
      this.isWhole = !this.isWhole;
      this.showTokens(card);
      this.tokens.querySelector("button").focus();
    };
    this.tokens.replaceChildren(
      tokenTable(card.circuit, values, tokensAt, caption),
      element("p", {}, element("button", { type: "button", onclick: toggle }, other)),
      element("p", { class: "soft" }, ABOUT_TOKENS),
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
