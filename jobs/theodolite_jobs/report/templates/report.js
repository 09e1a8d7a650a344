/** Return the text of an element that the report contains gzipped. */
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (one) => one.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

if (!globalThis.DecompressionStream)
  for (const node of document.querySelectorAll(".figure")) node.textContent = "This figure needs a newer browser.";

const contents = JSON.parse(await unpacked("figures"));
const script = document.createElement("script");
script.textContent = await unpacked("plotly");
document.head.append(script); // the listeners below are added without a wait, so a page with Plotly can be printed
const figures = [...document.querySelectorAll("[data-figure]")].map((node) => ({
  node,
  isDrawn: false,
  ...contents[node.dataset.figure],
}));

function draw(figure, colours) {
  const layout = onPage(figure, figure.node.clientWidth || 700, colours);
  layout.uirevision = "same"; // the zoom stays if the window changes its width
  figure.node.style.minHeight = "";
  const isFirst = !figure.isDrawn;
  figure.isDrawn = true;
  const options = { responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover" };
  Plotly.react(figure.node, onAxes(figure), layout, options);
  if (!isFirst) return;
  const controls = switchesOf(figure, () => draw(figure));
  if (controls.length) figure.node.before(element("div.axes", controls));
  figure.whenDrawn?.();
}

const drawn = () => figures.filter((figure) => figure.isDrawn);
watchPaper(() => drawn().forEach((figure) => draw(figure)));
// Paper has all figures, in dark ink, and all sentences; tables and the texts of prompts stay as they are.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.paper:not([open])")];
  for (const one of opened) one.open = true;
  figures.forEach((figure) => draw(figure, PRINT));
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
  drawn().forEach((figure) => draw(figure));
});

/** Draw figures shortly before they are seen. */
function watch() {
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        const figure = figures.find((one) => one.node === target);
        if (!isIntersecting || figure.isDrawn) continue;
        seen.unobserve(target);
        draw(figure);
      }
    },
    { rootMargin: "800px" },
  );
  for (const { node } of figures) seen.observe(node);
}
