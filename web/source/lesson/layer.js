// Chapter 5: residual connections, layer norms and the feed-forward network of the first layer, for one token.
import { element, quoted } from "@drawing/dom.js";
import { choices } from "./choices.js";
import { add, moments, numberCell, rowOf, scrolling, show, stripes } from "./numbers.js";
import { stepper } from "./stepper.js";

const COLUMNS = 5; // numbers that are written out

/** Return the vectors of one token on its way through layer 1. */
export function passOf({ encoder, first }, token, { eps, gamma, beta }) {
  const x = rowOf(encoder.hidden, 0, token), attended = rowOf(first.attended, token), sum = add(x, attended), { mean, variance } = moments(sum);
  const normal = sum.map((one) => (one - mean) / Math.sqrt(variance + eps)), y = normal.map((one, index) => gamma[index] * one + beta[index]);
  const inner = rowOf(first.inner, token), transformed = rowOf(first.transformed, token);
  return { x, attended, sum, mean, deviation: Math.sqrt(variance), normal, y, inner, transformed, second: add(y, transformed), output: rowOf(encoder.hidden, 1, token) };
}

/** Return {update} of the picture of a layer in a box. */
export function layerChapter(box, { model, choose }) {
  const stage = element("div", { class: "stage wide" }), pick = choices("Token", (token) => choose({ token }));
  const steps = stepper(box, "residual, norm and feed-forward");
  box.prepend(pick.node);
  box.append(stage);

  function update(state) {
    const { source, encoder, token } = state, pass = passOf(state, token, model.lesson.norm), name = quoted(source.tokens[token]);
    pick.update(source.tokens, token);
    const active = pass.inner.filter((one) => one > 0).length, inner = pass.inner.length.toLocaleString("en"), layers = encoder.attention.shape[0];
    const rows = [
      ["x", "input, from chapter 2", pass.x], ["MHA(x)", "attention, from chapter 4", pass.attended], ["a = x + MHA(x)", "residual connection", pass.sum],
      ["n = (a − μ) / σ", "mean 0, standard deviation 1", pass.normal], ["y = γ n + β", "learned scale and shift", pass.y],
      ["act(y W₁ + b₁)", `inside the network: ${inner} numbers`, pass.inner], ["FFN(y)", "back to the width of y", pass.transformed], ["y + FFN(y)", "residual connection", pass.second], ["output", "after the second layer norm", pass.output],
    ];
    const draw = (count) => stage.replaceChildren(passTable(rows, count));
    steps.update([
      { caption: () => `The layer receives x, the vector of ${name}. Attention has collected what the tokens offer: MHA(x).`, show: () => draw(2) },
      { caption: () => "Residual connection: both are added. Attention only changes x, it does not replace it.", show: () => draw(3) },
      { caption: () => `Layer norm: subtract the mean μ = ${show(pass.mean)} of the ${pass.sum.length} numbers, and divide by their standard deviation σ = ${show(pass.deviation)}.`, show: () => draw(4) },
      { caption: () => `Then each column j has a learned scale γ and shift β. In column 0: ${show(model.lesson.norm.gamma[0])} × ${show(pass.normal[0])} + ${show(model.lesson.norm.beta[0])} = ${show(pass.y[0])}.`.replace("+ −", "− "), show: () => draw(5) },
      { caption: () => `The feed-forward network widens y to ${inner} numbers. The activation ${model.lesson.activation === "relu" ? "replaces negative numbers with 0" : "brings negative numbers close to 0"}: ${active.toLocaleString("en")} of ${inner} are above 0 for ${name}.`, show: () => draw(6) },
      { caption: () => "A second matrix leads back to the width of y. No other token takes part: attention moves information between tokens, the feed-forward network works on each token alone.", show: () => draw(7) },
      { caption: () => "Again a residual connection …", show: () => draw(8) },
      { caption: () => `… and a layer norm. The result is the input of layer 2. The encoder has ${layers} such layers, each with its own weights. The output of the last one is what the decoder reads in chapter 6.`, show: () => draw(9) },
    ]);
  }
  return { update };
}

function passTable(rows, count) {
  const header = element("tr", {}, element("th", { scope: "col" }, "vector"), element("th", { scope: "col" }, "all numbers"), ...Array.from({ length: COLUMNS }, (_, index) => element("th", { scope: "col" }, String(index))), element("td", {}, "…"), element("th", { scope: "col" }, "mean"), element("th", { scope: "col" }, "std. dev."));
  const body = rows.map(([name, text, vector], index) => {
    const { mean, variance } = moments(vector), last = index === count - 1;
    return element("tr", { class: index < count ? (last ? "now" : "") : "waits", "data-row": name }, element("th", { scope: "row" }, element("b", {}, name), element("small", {}, text)), element("td", {}, stripes(name, vector)),
      ...Array.from(vector.slice(0, COLUMNS), (value) => numberCell(value, { decimals: 2 })), element("td", {}, "…"), numberCell(mean, { decimals: 2, className: "sum" }), numberCell(Math.sqrt(variance), { decimals: 2, className: "sum" }));
  });
  return scrolling("Vectors of the token in layer 1", element("table", { class: "numbers pass" }, element("thead", {}, header), element("tbody", {}, ...body)));
}
