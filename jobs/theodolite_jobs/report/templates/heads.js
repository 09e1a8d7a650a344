const circuits = JSON.parse(await unpacked("cards"));
const selects = { circuit: document.getElementById("card-circuit"), head: document.getElementById("card-head") };
const spectrumFigure = { node: document.getElementById("card-spectrum"), isDrawn: false };
const fold = document.getElementById("card-name").closest("details");
figures.push(spectrumFigure);

function showCard() {
  const circuit = selects.circuit.value, card = circuits[circuit][selects.head.value];
  document.getElementById("card-name").textContent = `${selects.head.value}, ${circuit.toUpperCase()} circuit`;
  draw(Object.assign(spectrumFigure, spectrum(card.values)));
  const tokensAt = (vector, side, end, against) =>
    (card.tokens[vector][`${side} ${against} ${end}`] ?? []).map(token => ({ token }));
  const values = card.values.slice(0, card.tokens.length).map(String);
  const isUntied = card.tokens.some(lists => "right unembedding top" in lists);
  const tokens = values.length ? [tokenTable(circuit, values, tokensAt, "Tokens of the selected head", isUntied)] : [];
  document.getElementById("card-tokens").replaceChildren(...tokens);
}

for (const figure of figures.filter(figure => figure.node.dataset.circuit)) {
  const listen = () => figure.node.on("plotly_click", event => {
    const name = event.points[0].customdata;
    if (!(name in circuits[figure.node.dataset.circuit])) return;
    selects.circuit.value = figure.node.dataset.circuit;
    selects.head.value = name;
    fold.open = true;
    showCard();
    document.getElementById("card-name").scrollIntoView({ behavior: "smooth", block: "center" });
  });
  if (figure.isDrawn) listen(); // the report was printed before
  else figure.whenDrawn = listen;
}
fold.addEventListener("toggle", () => fold.open && showCard()); // only now does the figure have a width
for (const select of Object.values(selects)) select.addEventListener("change", showCard);
document.getElementById("about-tokens")?.append(ABOUT_TOKENS);
showCard();
