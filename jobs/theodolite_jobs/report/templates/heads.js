const cards = JSON.parse(document.getElementById("cards").textContent);
const chosen = {circuit: document.getElementById("card-circuit"), head: document.getElementById("card-head")};
const spectrum = figures.find(figure => figure.node.id === "card-spectrum");
const sides = {qk: ["a query reads", "a key reads"], vo: ["is read of a token", "is written"]};
const visible = token => token.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function tokenCell(vector, side) {
  const cell = element("td");
  for (const token of vector[`${side} top`]) cell.append(element("span", visible(token), "token"));
  cell.append(element("br"));
  for (const token of vector[`${side} bottom`]) cell.append(element("span", visible(token), "token low"));
  return cell;
}

function showCard() {
  const circuit = chosen.circuit.value, card = cards[circuit][chosen.head.value];
  const total = card.values.reduce((sum, value) => sum + value, 0);
  let sum = 0;
  document.getElementById("card-name").textContent = `${chosen.head.value}, ${circuit.toUpperCase()} circuit`;
  spectrum.data[0].y = card.values;
  spectrum.data[1].y = card.values.map(value => (sum += value) / (total || 1));
  draw(spectrum);
  const table = document.getElementById("card-tokens"), header = element("tr");
  for (const title of ["vector", ...sides[circuit]]) header.append(element("th", title));
  table.replaceChildren(header, ...card.tokens.map((vector, index) => {
    const row = element("tr");
    row.append(element("td", `${index + 1}: σ ${card.values[index]}`), tokenCell(vector, "left"), tokenCell(vector, "right"));
    return row;
  }));
  table.hidden = !card.tokens.length;
}

for (const figure of figures.filter(figure => figure.node.dataset.circuit))
  figure.node.on("plotly_click", event => {
    const name = event.points[0].customdata;
    if (!(name in cards[figure.node.dataset.circuit])) return;
    chosen.circuit.value = figure.node.dataset.circuit;
    chosen.head.value = name;
    showCard();
    document.getElementById("card-name").scrollIntoView({behavior: "smooth", block: "center"});
  });
for (const select of Object.values(chosen)) select.addEventListener("change", showCard);
showCard();
