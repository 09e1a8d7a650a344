const figures = [...document.querySelectorAll("script[data-figure]")].map(data => ({
  node: data.previousElementSibling, ...JSON.parse(data.textContent)
}));

function draw(figure) {
  const layout = onPage(figure, figure.node.clientWidth || 700);
  layout.uirevision = "same"; // the zoom stays if the window changes its width
  figure.node.style.minHeight = "";
  return Plotly.react(figure.node, figure.data, layout, {responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover"});
}

const drawAll = () => figures.forEach(draw);
watchPaper(drawAll);
drawAll();
