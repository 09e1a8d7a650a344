// Colours and layouts of figures on light or dark, wide or narrow pages. The report includes this file too.

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");

/** Call `changed` when figures must be redrawn: the colour scheme or the width of the page changed. */
export function watchPaper(changed) {
  // The page says when its colours change, because its user can choose them; the report follows the system.
  if (document.documentElement.dataset.theme) addEventListener("themechange", changed);
  else dark.addEventListener("change", changed);
  narrow.addEventListener("change", changed);
  let [width, waiting] = [innerWidth, 0];
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(changed, 250);
  });
}

/** Return the current colours of the page. */
export function pageColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "card", "line"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Colours of an exported picture, for a white background. */
export const PRINT = { ink: "#1d2127", card: "#ffffff", line: "#e2e4e8" };

/** Return a figure's layout in these colours. */
function onPaper(layout, colours) {
  const made = structuredClone(layout);
  made.font = { ...made.font, color: colours.ink };
  made.hoverlabel = { bgcolor: colours.card, bordercolor: colours.line, font: { color: colours.ink } };
  for (const name of Object.keys(made).filter((key) => /^[xy]axis/.test(key)))
    Object.assign(made[name], { gridcolor: colours.line, zerolinecolor: colours.line, linecolor: colours.line });
  for (const axis of ["xaxis", "yaxis", "zaxis"])
    if (made.scene?.[axis]) Object.assign(made.scene[axis], { gridcolor: colours.line, zerolinecolor: colours.line });
  return made;
}

/** Return a figure's traces; a logarithmic axis has no zero, so a line has a gap there instead of a fall to the edge. */
export function onAxes(figure) {
  return figure.data.map((trace) => {
    const axis = figure.layout[(trace.yaxis ?? "y").replace("y", "yaxis")];
    if (axis?.type !== "log" || trace.fill || !Array.isArray(trace.y)) return trace;
    return { ...trace, y: trace.y.map((value) => (value > 0 ? value : null)) };
  });
}

/** Return a figure's layout, with margins, ticks and legend fitted to a width; by default in the page's colours. */
export function onPage(figure, width, colours = pageColours()) {
  return fitted(onPaper(figure.layout, colours), figure.data, width);
}

/** Return a layout fitted to a width in pixels, so that nothing overlaps; narrow pages get small margins and names. */
function fitted(layout, data, width) {
  const made = structuredClone(layout);
  made.margin = { l: 58, r: 4, t: 60, b: 56, ...made.margin };
  if (narrow.matches) {
    made.font.size = 11;
    if (made.margin.autoexpand !== false) made.margin.l = Math.min(made.margin.l, 58);
    const names = (made.annotations ?? []).filter(({ xref, x }) => xref === "paper" && x === 1);
    for (const { font } of names) font.size = 9;
    if (names.length) made.margin.r *= 9 / 11;
    // A finger on a figure scrolls the page; only figures in three dimensions react to it.
    made.dragmode = false;
  }
  if (made.scene) {
    if (narrow.matches) made.scene.dragmode = "turntable";
    made.height = Math.min(made.height, width); // a scene in three dimensions is square
  }
  const room = width - made.margin.l - made.margin.r - 10;
  wrapTitle(made, width);
  thinTicks(made, room);
  fitLegend(made, data, room);
  return made;
}

/** Break the title above a map if it is wider than the figure. */
function wrapTitle(layout, width) {
  const { text, font } = layout.title ?? {};
  if (!text) return;
  const lines = wrapped(text, width, { ...layout.font, ...font });
  layout.title.text = lines.join("<br>");
  raise(layout, 1.3 * font.size * (lines.length - 1));
}

/** Return a layout with texts above the figure, in place of its title: the first one large, the others small. */
export function withTitle(layout, [first, ...others], width) {
  const [large, small] = [14, 11];
  const room = width - 24;
  const heads = wrapped(first, room, { ...layout.font, size: large });
  const lines = others.flatMap((text) => wrapped(text, room, { ...layout.font, size: small }));
  const text = [...heads, ...lines.map((line) => `<span style="font-size:${small}px">${line}</span>`)].join("<br>");
  const had = layout.title?.text ? 1.3 * (layout.title.font?.size ?? large) : 0;
  raise(layout, 1.3 * large * (heads.length + lines.length) + 14 - had);
  const place = { x: 0, xref: "container", xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: { t: 14, l: 12 } };
  return { ...layout, title: { ...place, text, font: { size: large } } };
}

/** Return the lines of a text that is at most this wide. */
function wrapped(text, width, font) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (lines.at(-1) === "" || widthOf(longer, font) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Make the room above a figure higher. */
function raise(layout, pixels) {
  layout.margin.t += pixels;
  layout.height += pixels;
}

/** Leave out text ticks that would overlap. */
function thinTicks(layout, room) {
  for (const axis of Object.keys(layout).filter((key) => /^xaxis/.test(key))) {
    const { tickvals, ticktext } = layout[axis];
    if (!ticktext?.length) continue;
    const widest = Math.max(...ticktext.map((text) => widthOf(text, layout.font)));
    const step = Math.ceil(((widest + 12) * ticktext.length) / room);
    const isShown = (_, index) => index % step === 0;
    Object.assign(layout[axis], { tickvals: tickvals.filter(isShown), ticktext: ticktext.filter(isShown) });
  }
}

/** Give the legend above the first panel as much room as its rows need. */
function fitLegend(layout, data, room) {
  if (!layout.legend || layout.showlegend === false) return;
  const names = new Set(data.filter(({ name, showlegend }) => name && showlegend !== false).map(({ name }) => name));
  let [rows, used] = [1, 0];
  for (const name of names) {
    const width = widthOf(name, layout.font) + 50; // the sample before the name, and gaps
    if (used && used + width > room) [rows, used] = [rows + 1, 0];
    used += width;
  }
  const missing = Math.max(0, rows * (Math.max(16, 1.3 * layout.font.size) + 3) + 22 - layout.margin.t);
  layout.margin.t += missing;
  layout.height += missing;
}

const ruler = document.createElement("canvas").getContext("2d");

function widthOf(text, { size, family }) {
  ruler.font = `${size}px ${family}`;
  return ruler.measureText(text.replace(/<[^>]*>/g, "")).width;
}
