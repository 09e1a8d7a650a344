const circuits = JSON.parse(document.getElementById("cards").textContent);
const chosen = { circuit: document.getElementById("card-circuit"), head: document.getElementById("card-head") };
const ofChosen = { node: document.getElementById("card-spectrum") };
figures.push(ofChosen);

function showCard() {
  const circuit = chosen.circuit.value, card = circuits[circuit][chosen.head.value];
  document.getElementById("card-name").textContent = `${chosen.head.value}, ${circuit.toUpperCase()} circuit`;
  draw(Object.assign(ofChosen, spectrum(card.values)));
  const tokensAt = (vector, side, end) => card.tokens[vector][`${side} ${end}`].map(token => ({ token }));
  const values = card.values.slice(0, card.tokens.length).map(String);
  const tokens = values.length ? [tokenTable(circuit, values, tokensAt, "Tokens of the chosen head")] : [];
  document.getElementById("card-tokens").replaceChildren(...tokens);
}

for (const figure of figures.filter(figure => figure.node.dataset.circuit))
  figure.node.on("plotly_click", event => {
    const name = event.points[0].customdata;
    if (!(name in circuits[figure.node.dataset.circuit])) return;
    chosen.circuit.value = figure.node.dataset.circuit;
    chosen.head.value = name;
    showCard();
    document.getElementById("card-name").scrollIntoView({ behavior: "smooth", block: "center" });
  });
for (const select of Object.values(chosen)) select.addEventListener("change", showCard);
document.getElementById("about-tokens")?.append(ABOUT_TOKENS);
showCard();
