// Chapter 2: each id picks a row of the embedding table, and the vector of its position is added.
import { display, element, quoted } from "@drawing/dom.js";
import { choices } from "./choices.js";
import { largestOf, numberCell, rowOf, scrolling, stripes } from "./numbers.js";
import { stepper } from "./stepper.js";

const COLUMNS = 5; // numbers that are written out

/** Return the position vector (D,) of a position, as equations/positions.py computes it. */
export function positionVector(position, width, kind) {
  const vector = new Float32Array(width), half = Math.ceil(width / 2);
  for (let j = 0; j < half; j++) {
    const angle = position / 10000 ** ((2 * j) / width), [sine, cosine] = kind === "concatenated" ? [j, half + j] : [2 * j, 2 * j + 1];
    vector[sine] = Math.sin(angle);
    if (cosine < width) vector[cosine] = Math.cos(angle);
  }
  return vector;
}

/** Return {update} of the picture of embeddings in a box. */
export function embeddingChapter(box, { model, choose }) {
  const stage = element("div", { class: "stage" }), pick = choices("Token", (token) => choose({ token }));
  const steps = stepper(box, "embedding");
  box.prepend(pick.node);
  box.append(stage);

  function update({ source, first, encoder, token }) {
    const { tokens, ids } = source, width = first.embedded.shape[1], scale = Math.sqrt(width), kind = model.lesson.positions;
    pick.update(tokens, token);
    const rows = ids.map((_, index) => rowOf(first.embedded, index)), positions = ids.map((_, index) => positionVector(index, width, kind));
    const sums = ids.map((_, index) => rowOf(encoder.hidden, 0, index)), name = quoted(tokens[token]);
    const parts = [
      { name: "E[t]", text: "row of the embedding table", vectors: rows.map((row) => row.map((one) => one / scale)) },
      { name: "√D E[t]", text: `E[t] times ${Math.round(scale * 100) / 100}`, vectors: rows },
      { name: "p", text: "position", vectors: positions },
      { name: "x", text: "sum: input of layer 1", vectors: sums },
    ];
    const most = Math.max(...sums.map(largestOf));
    const draw = (count) => stage.replaceChildren(
      numbersTable(parts, count, token, tokens[token], width),
      element("h3", {}, "All tokens, one in each row"),
      element("div", { class: "panels" }, ...parts.slice(1).map((part, index) => panelOf(part, tokens, token, most, index + 2 <= count))),
    );
    steps.update([
      { caption: () => `${name} has the id ${ids[token]}. It picks row ${ids[token]} of the embedding table E: ${width} numbers that training has found for this token.`, show: () => draw(1) },
      { caption: () => `The row is multiplied by √D = √${width}${Number.isInteger(scale) ? ` = ${scale}` : ` ≈ ${scale.toFixed(2)}`}, so that it is not small next to the position.`, show: () => draw(2) },
      { caption: () => `${name} is at position i = ${token} (we count from 0). The vector of position ${token} is not learned: it consists of sines and cosines of ${token}, from fast waves to slow ones.`, show: () => draw(3) },
      { caption: () => `The sum of both is x, the vector with which ${name} enters the first layer. The same word at another place has another x.`, show: () => draw(4) },
    ]);
  }
  return { update };
}

function numbersTable(parts, count, token, name, width) {
  const header = element("tr", {}, element("th", { scope: "col" }, element("bdi", {}, display(name))), element("th", { scope: "col" }, `all ${width} numbers`), ...Array.from({ length: COLUMNS }, (_, index) => element("th", { scope: "col" }, String(index))), element("td", {}, "…"));
  const rows = parts.map((part, index) => element("tr", { class: index < count ? (index === count - 1 ? "now" : "") : "waits", "data-row": part.name },
    element("th", { scope: "row" }, element("b", {}, part.name), element("small", {}, part.text)), element("td", {}, stripes(`${part.name} of ${display(name)}`, part.vectors[token])),
    ...Array.from(part.vectors[token].slice(0, COLUMNS), (value) => numberCell(value)), element("td", {}, "…")));
  return scrolling("Numbers of the chosen token", element("table", { class: "numbers" }, element("thead", {}, header), element("tbody", {}, ...rows)));
}

/** Return the vectors of all tokens: a row for each. */
function panelOf({ name, text, vectors }, tokens, token, most, isShown) {
  const names = element("span", { class: "row-names", "aria-hidden": "true" }, ...tokens.map((one, index) => element("span", { class: index === token ? "now" : "" }, element("bdi", {}, display(one)))));
  return element("figure", { class: isShown ? "" : "waits" }, element("figcaption", {}, element("b", {}, name), ` ${text}`), element("div", { class: "rows" }, names, stripes(`${name} of all tokens`, vectors, { largest: most / 2, className: "tall" })));
}
