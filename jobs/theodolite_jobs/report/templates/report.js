const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = innerWidth < 700;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const figures = [...document.querySelectorAll("script[data-figure]")].map(data => ({
  node: data.previousElementSibling, ...JSON.parse(data.textContent)
}));

function layoutFor(figure) {
  const layout = structuredClone(figure.layout);
  layout.font = {...layout.font, color: css("--ink")};
  layout.hoverlabel = {bgcolor: css("--card"), bordercolor: css("--line"), font: {color: css("--ink")}};
  for (const key of Object.keys(layout).filter(key => /^[xy]axis/.test(key)))
    Object.assign(layout[key], {gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line")});
  if (narrow) {
    if (layout.margin.l > 58) Object.assign(layout.margin, {l: 58, r: 4});
    layout.font.size = 11;
  }
  return layout;
}

const draw = figure => Plotly.react(figure.node, figure.data, layoutFor(figure), {responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover"});
const drawAll = () => figures.forEach(draw);
dark.addEventListener("change", drawAll);
drawAll();
