// Exports a figure: its numbers as CSV, or the figure as a picture.

import { element } from "./elements.js";
import { onAxes, onPage, PRINT, withTitle } from "./paper.js";

const COLUMNS = ["trace", "x", "y", "z", "label"];

/** Return the numbers of a figure as CSV, one row for each point or cell. */
export function csvOf(figure) {
  const named = (trace, index) => trace.fill && trace.legendgroup ? `${trace.legendgroup}, ${trace.name}` : trace.name || `trace ${index + 1}`;
  const rows = figure.data.flatMap((trace, index) => rowsOf(trace, named(trace, index)));
  const used = COLUMNS.filter((_, column) => rows.some((row) => row[column] !== ""));
  const isUsed = (_, column) => used.includes(COLUMNS[column]);
  const lines = [used, ...rows.map((row) => row.filter(isUsed).map(quoted))];
  return lines.map((line) => line.join(",") + "\r\n").join("");
}

/** Download a text as a file. */
export function download(name, text, type) {
  downloadFile(name, new Blob([text], { type }));
}

/** Download a blob as a file. */
export function downloadFile(name, blob) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Download a figure as an SVG picture on a white background, in its size on the page, with texts above it. */
export function downloadPicture(Plotly, figure, name, width, texts) {
  const layout = withTitle({ ...onPage(figure, width, PRINT), paper_bgcolor: PRINT.card }, texts, width);
  const { height } = layout;
  return Plotly.downloadImage({ data: onAxes(figure), layout }, { format: "svg", filename: name, width, height });
}

function rowsOf(trace, name) {
  if (trace.type === "heatmap")
    return trace.z.flatMap((row, y) =>
      row.map((z, x) => {
        const [text, label] = [trace.text?.[y]?.[x], trace.customdata?.[y]?.[x]];
        return [name, trace.x?.[x] ?? x, trace.y?.[y] ?? y, text ?? z ?? "", label ?? ""];
      }),
    );
  return trace.x.map((x, point) => {
    const label = trace.customdata?.[point] ?? (Array.isArray(trace.text) ? trace.text[point] : "");
    return [name, x ?? "", trace.y[point] ?? "", trace.z?.[point] ?? "", label ?? ""];
  });
}

/** Return a cell of CSV. A text that a spreadsheet would run as a formula begins with an apostrophe. */
function quoted(value) {
  const text = /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
