// What figures are drawn on: the page's paper and ink, light or dark, wide or narrow.

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");

/** Call back whenever figures have to be drawn anew. */
export function watchPaper(changed) {
  dark.addEventListener("change", changed);
  narrow.addEventListener("change", changed);
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

/**
 * Return the pixels that a figure needs at least, on a narrow page: legends between panels have room for two rows, and
 * more would cover the panel above. Such a figure is scrolled sideways.
 */
export function roomFor({ data }) {
  if (!narrow.matches) return 0;
  const widths = {};
  for (const trace of data)
    if (trace.name && trace.showlegend !== false && trace.visible !== false && /^legend\d/.test(trace.legend ?? ""))
      widths[trace.legend] = (widths[trace.legend] ?? 0) + 46 + 6.2 * trace.name.length;
  return Math.ceil(Math.max(0, ...Object.values(widths)) / 2 + 130);
}

/** Return a layout as this page shows it: captions stand above figures, and narrow ones save their margins. */
export function onPage(layout) {
  const made = onPaper(layout, pageColours());
  if (made.title?.text) {
    delete made.title;
    made.margin = { ...made.margin, t: 8 };
  }
  if (narrow.matches) {
    made.font.size = 11;
    const { l = 58, r = 4 } = made.margin ?? {};
    const isRightFree = made.yaxis2?.side !== "right";
    made.margin = { ...made.margin, l: Math.min(l, 58), r: isRightFree ? Math.min(r, 4) : Math.min(r, 40) };
    // A finger on a figure scrolls the page; only what can be turned keeps it.
    made.dragmode = false;
    if (made.scene) made.scene.dragmode = "turntable";
  }
  return made;
}
