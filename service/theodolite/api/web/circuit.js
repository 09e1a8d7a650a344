// The spectrum of one circuit of a head, and the tokens of its singular vectors. The report includes this file too.

import { element, table } from "./elements.js";

/** Columns of the tokens of each circuit: the side, the matrix whose rows are ranked, and the title. */
const COLUMNS = {
  qk: [["left", "read", "read by a query"], ["right", "read", "read by a key"]],
  ov: [["left", "read", "read from a token"], ["right", "embedding", "written"]],
};

/** The columns of OV in a model whose unembedding differs from the embedding. */
const UNTIED = [
  COLUMNS.ov[0],
  ["right", "embedding", "written, ranked by the embedding"],
  ["right", "unembedding", "written, ranked by the unembedding"],
];

/** Explanation of the tables of tokens. */
export const ABOUT_TOKENS =
  "Tokens are ranked by their dot product with a singular vector: first the largest products, then, with a dashed outline, the most negative ones. The sign of a pair of singular vectors is a convention. A dot stands for a space.";

/** Return a figure of the singular values in descending order, and of their cumulative share of the sum. */
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
      line(values.map((value) => (sum += value) / total), "cumulative share of the sum", "#b8860b", "dash", "y2"),
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
 * Return the table of the tokens at both ends of singular vectors, one row for each vector.
 *
 * @param {string} circuit `qk` or `ov`.
 * @param {string[]} values The singular value of each vector, as text.
 * @param {(vector: number, side: string, end: string, against: string) => {token: string, score?: number}[]} tokensAt
 *   The tokens of the `left` or `right` side, at its `top` or `bottom` end, ranked by the rows of the matrix `against`.
 * @param {string} caption Name of the table for screen readers.
 * @param {boolean} isUntied Whether tokens of the written side are ranked by the unembedding too.
 */
export function tokenTable(circuit, values, tokensAt, caption, isUntied) {
  const columns = circuit === "ov" && isUntied ? UNTIED : COLUMNS[circuit];
  const ends = (vector, side, against) => element("div",
    element("div", chips(tokensAt(vector, side, "top", against), "token")),
    element("div", chips(tokensAt(vector, side, "bottom", against), "token low")),
  );
  const rows = values.map((value, at) => [
    `${at + 1}: σ ${value}`,
    ...columns.map(([side, against]) => ends(at, side, against)),
  ]);
  return element("div.tokens", table(["vector", ...columns.map(([, , title]) => title)], rows, caption));
}

function chips(tokens, kind) {
  const title = (score) => (score === undefined ? null : `score ${score.toPrecision(3)}`);
  return tokens.map(({ token, score }) => element("span", { class: kind, title: title(score) }, visible(token)));
}

/** Return a token with visible spaces, tabs and line ends. */
function visible(token) {
  return token.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}
