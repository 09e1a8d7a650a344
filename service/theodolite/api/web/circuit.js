// What is shown of one circuit of a head: its spectrum, and the tokens of its singular vectors. The report includes
// this file too.

import { element, table } from "./elements.js";

/** What the left and the right singular vectors of each circuit stand for. */
const SIDES = { qk: ["a query reads", "a key reads"], vo: ["is read of a token", "is written"] };

/** How the tokens are to be read. */
export const ABOUT_TOKENS =
  "Tokens are ranked by their raw dot product with a singular vector: first those at its positive end, then, dashed, those at its negative end. The sign of a vector is a convention; both of its sides share it. A dot stands for a space.";

/** Return the figure of singular values, the largest first, and of the share of their sum that the first so many hold. */
export function spectrum(values) {
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

/**
 * Make the table of the tokens at both ends of singular vectors, a row for each vector.
 *
 * @param {string} circuit `qk` or `vo`.
 * @param {string[]} values The singular value of each vector, as it is shown.
 * @param {(vector: number, side: string, end: string) => {token: string, score?: number}[]} tokensAt The tokens of the
 *   `left` or `right` side, at its `top` or `bottom` end.
 * @param {string} caption What the table is called where it cannot be seen.
 */
export function tokenTable(circuit, values, tokensAt, caption) {
  const rows = values.map((value, vector) => [
    `${vector + 1}: σ ${value}`,
    ...["left", "right"].map((side) =>
      element(
        "div",
        {},
        element("div", {}, chips(tokensAt(vector, side, "top"), "token")),
        element("div", {}, chips(tokensAt(vector, side, "bottom"), "token low")),
      ),
    ),
  ]);
  return element("div", { class: "tokens" }, table(["vector", ...SIDES[circuit]], rows, { caption }));
}

function chips(tokens, kind) {
  return tokens.map(({ token, score }) =>
    element("span", { class: kind, title: score === undefined ? null : `score ${score.toPrecision(3)}` }, visible(token)),
  );
}

/** Return a token with its spaces and line ends to be seen. */
function visible(token) {
  return token.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}
