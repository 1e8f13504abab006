/* the end of an encoder: its vector, the cosines of several texts, or the probabilities of labels */
const POOLINGS = {
  mean: (count) => `The mean of the ${plural(count, "token")}' vectors after the last layer is the vector of the text (mean pooling).`,
  cls: () => "The vector of the first token after the last layer is the vector of the text (cls pooling).",
  max: (count) => `The vector of the text has the largest value of the ${plural(count, "token")}' vectors in each dimension (max pooling).`,
  late: () => "The head computes logits for every token; their mean gives the logits of the text (late pooling).",
};
const pooled = () => POOLINGS[data.pooling.kind](data.source.length - data.pooling.skip)
  + (data.pooling.skip ? ` The ${plural(data.pooling.skip, "token")} of the prompt are left out.` : "");

function vector() {
  const rows = data.vectors.length, columns = data.vectors[0].length;
  const largest = Math.max(...data.vectors.flat().map(Math.abs)) || 1, of = (index) => data.vectors[Math.floor(index / columns)][index % columns];
  const scaled = data.pooling.normalize ? " It is then divided by its length, so that its length is 1." : "";
  byId("vector-hint").textContent = `${pooled()}${scaled} These ${columns} numbers are what the encoder returns. Texts with similar meanings have vectors with similar directions; a single number has no name.`;
  const name = (row) => (rows > 1 ? `text ${row + 1}, ` : "");
  const strip = element("div", { class: "cells", tabindex: "0", role: "application", "aria-label": `Values of ${plural(rows, "vector")} with ${columns} dimensions. Arrow keys move from value to value.` }, panel());
  strip.querySelector(".panel > canvas").style.height = `${Math.max(34, 22 * rows)}px`;
  const draw = () => shade(strip.querySelector("canvas"), rows, columns, (index) => of(index) / largest);
  draw();
  redraws.add(draw);
  addNavigation(strip, (at) => `${name(at.row)}dimension ${at.column}: ${digits(of(at.row * columns + at.column))}`);
  strip.dataset.ready = "yes";
  const legend = element("p", { class: "ends" }, element("span", { class: "key negative" }, "negative"), element("span", { class: "key" }, "positive"),
    element("span", { class: "size" }, `${rows > 1 ? `${rows} rows, one for each text; ` : ""}largest absolute value ${digits(largest)}`));
  const first = data.vectors[0].slice(0, 6).map((value) => fixed(value, 4)).join(", ");
  byId("vector-view").append(strip, legend, element("p", { class: "numbers-line" }, `${rows > 1 ? "Text 1: " : ""}[${first}, …]`));
}

function similarities() {
  const list = element("ol", { class: "texts" }, ...data.texts.map((text, index) => element("li", {}, element("bdi", {}, text ? truncate(text, 200) : "(empty)"),
    data.truncated_texts[index] ? element("span", {}, " (truncated to the maximum length of the model)") : "")));
  const pairs = data.cosines.flatMap((row, one) => row.slice(one + 1).map((cosine, offset) => [cosine, one + 1, one + 2 + offset])).sort((one, other) => other[0] - one[0]);
  const pair = ([cosine, one, other]) => `${one} and ${other} (${fixed(cosine, 2)})`;
  const { table, redraw } = matrixTable(data.cosines, "Cosine of each pair of texts");
  redraws.add(redraw);
  byId("similarity-view").append(list, table, element("p", { class: "hint" }, `Most similar: ${pair(pairs[0])}${pairs.length > 1 ? `. Least similar: ${pair(pairs.at(-1))}` : ""}.`));
}

function labels() {
  const sorted = Object.entries(data.labels).sort((one, other) => other[1] - one[1]);
  const sum = data.exclusive ? "Exactly one label applies: the probabilities sum to 1 (softmax)." : "Each label is judged for itself (sigmoid), so that the probabilities need not sum to 1.";
  byId("label-hint").textContent = `${pooled()} The head turns it into one number for each label, its logit, and the logits into probabilities. ${sum}`;
  byId("label-view").append(tableOf(["label", "probability"], sorted.map(([name, probability]) => element("tr", {}, element("td", { title: name }, name), element("td", {}, bar(probability), percent(probability))))));
}

if (data.vectors) vector();
if (data.cosines) similarities();
if (data.labels) labels();
