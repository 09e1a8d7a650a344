// What figures are drawn on: paper and ink, light or dark, wide or narrow. The report has this file inside it too.

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");

/** Call back whenever figures have to be drawn anew: in other colours, or with legends of more rows or fewer. */
export function watchPaper(changed) {
  dark.addEventListener("change", changed);
  narrow.addEventListener("change", changed);
  let [width, waiting] = [innerWidth, 0];
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(changed, 250);
  });
}

/** Return the colours of the page as it is now. */
export function pageColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "card", "line"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Colours of a picture that leaves the page: it is likely to stand on white. */
export const PRINT = { ink: "#1d2127", card: "#ffffff", line: "#e2e4e8" };

/** Return a figure's layout in these colours. */
export function onPaper(layout, colours) {
  const made = structuredClone(layout);
  made.font = { ...made.font, color: colours.ink };
  made.hoverlabel = { bgcolor: colours.card, bordercolor: colours.line, font: { color: colours.ink } };
  for (const name of Object.keys(made).filter((key) => /^[xy]axis/.test(key)))
    Object.assign(made[name], { gridcolor: colours.line, zerolinecolor: colours.line, linecolor: colours.line });
  for (const axis of ["xaxis", "yaxis", "zaxis"])
    if (made.scene?.[axis]) Object.assign(made.scene[axis], { gridcolor: colours.line, zerolinecolor: colours.line });
  return made;
}

/** Return a figure's layout in the colours of this page, with what stands around its panels fitted to a width. */
export function onPage(figure, width) {
  return fitted(onPaper(figure.layout, pageColours()), figure.data, width);
}

/** Return a layout for so many pixels: a narrow one saves its margins, and nothing is cut or lies over anything. */
export function fitted(layout, data, width) {
  const made = structuredClone(layout);
  made.margin = { l: 58, r: 4, t: 60, b: 56, ...made.margin };
  if (narrow.matches) {
    made.font.size = 11;
    const isRightFree = made.yaxis2?.side !== "right";
    if (made.margin.autoexpand !== false)
      Object.assign(made.margin, { l: Math.min(made.margin.l, 58), r: Math.min(made.margin.r, isRightFree ? 4 : 40) });
    // A finger on a figure scrolls the page; only what can be turned keeps it.
    made.dragmode = false;
  }
  if (made.scene) {
    if (narrow.matches) made.scene.dragmode = "turntable";
    made.height = Math.min(made.height, width); // what is seen of a space is as high as the figure, and as wide
  }
  const room = width - made.margin.l - made.margin.r - 10;
  thinTicks(made, room);
  spaceLegends(made, data, room);
  return made;
}

/** Leave out ticks with words of their own where they would not stand side by side. */
function thinTicks(layout, room) {
  for (const axis of Object.keys(layout).filter((key) => /^xaxis/.test(key))) {
    const { tickvals, ticktext } = layout[axis];
    if (!ticktext?.length) continue;
    const widest = Math.max(...ticktext.map((text) => widthOf(text, layout.font)));
    const step = Math.ceil(((widest + 12) * ticktext.length) / room);
    const kept = (_, index) => index % step === 0;
    Object.assign(layout[axis], { tickvals: tickvals.filter(kept), ticktext: ticktext.filter(kept) });
  }
}

/** Move panels apart, which keep their height, until each legend has room for its rows above its panel. */
function spaceLegends(layout, data, room) {
  const { t, b } = layout.margin;
  const before = layout.height - t - b;
  const legends = Object.keys(layout).filter((key) => /^legend\d*$/.test(key));
  const panels = Object.keys(layout)
    .filter((key) => /^yaxis/.test(key) && !layout[key].overlaying)
    .map((key) => ({ axis: layout[key], domain: layout[key].domain ?? [0, 1] }))
    .sort((one, other) => other.domain[1] - one.domain[1]);
  let [above, grown, free] = [1, 0, t];
  for (const [index, panel] of panels.entries()) {
    const [bottom, top] = panel.domain;
    if (index) free = (above - top) * before;
    panel.legend = legends.find((name) => Math.abs(layout[name].y - top) < 0.03);
    const missing = Math.max(0, heightOf(panel.legend, layout, data, room) - free);
    if (index) grown += missing;
    else layout.margin.t += missing;
    Object.assign(panel, { top: (1 - top) * before + grown, bottom: (1 - bottom) * before + grown });
    above = bottom;
  }
  const after = before + grown;
  for (const { axis, legend, top, bottom } of panels) {
    axis.domain = [Math.max(0, 1 - bottom / after), 1 - top / after];
    if (legend) layout[legend].y = axis.domain[1];
  }
  layout.height = layout.margin.t + after + b;
}

/** Return how high a legend is, with some air around it. */
function heightOf(legend, layout, data, room) {
  if (!legend || layout.showlegend === false) return 0;
  const shown = data.filter(
    (trace) =>
      trace.name && trace.showlegend !== false && trace.visible !== false && (trace.legend ?? "legend") === legend,
  );
  let [rows, used] = [shown.length ? 1 : 0, 0];
  for (const { name } of shown) {
    const width = widthOf(name, layout.font) + 50; // the line before it, and gaps
    if (used && used + width > room) [rows, used] = [rows + 1, 0];
    used += width;
  }
  return rows * (Math.max(16, 1.3 * layout.font.size) + 3) + 22;
}

const ruler = document.createElement("canvas").getContext("2d");

function widthOf(text, { size, family }) {
  ruler.font = `${size}px ${family}`;
  return ruler.measureText(text.replace(/<[^>]*>/g, "")).width;
}
