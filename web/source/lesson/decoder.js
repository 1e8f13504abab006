// Chapter 6: the decoder's causal mask, its cross-attention, and the probabilities of the next token.
import { probabilityBars } from "@drawing/bars.js";
import { display, element, percent, quoted } from "@drawing/dom.js";
import { headMap } from "@drawing/head_map.js";
import { meanOfHeads } from "@drawing/heads.js";
import { tokenLines } from "@drawing/token_lines.js";
import { show } from "./numbers.js";
import { stepper } from "./stepper.js";

const [MASK, OWN, CROSS, NEXT] = [0, 1, 2, 3];

/** Return {update} of the picture of the decoder in a box. */
export function decoderChapter(box, { model, choose }) {
  const stage = element("div", { class: "stage wide" }), maps = element("div", { class: "maps" }), bars = element("div", { class: "next" });
  const pick = (target) => choose({ target }), lines = tokenLines({ onSource: null, onTarget: pick });
  const steps = stepper(box, "the decoder"), sentence = element("p", { class: "most" });
  box.append(stage);
  stage.append(lines.node, sentence, maps, bars);

  function update({ source, best, target }) {
    const { tokens, attention, probabilities, alternatives, ids } = best, inputs = ["start", ...tokens.slice(0, -1)];
    const draw = (at, row) => {
      const cross = meanOfHeads(attention.cross, row), own = meanOfHeads(attention.self, row);
      lines.update({ source: source.tokens.map((token) => ({ token })), target: tokens.map((token, index) => ({ token, probability: probabilities[index] })), weights: at >= CROSS ? cross : [], chosen: row });
      const parts = [mapOf("Masked self-attention", attention.self, tokens, inputs, at === MASK ? null : row, pick, true)];
      if (at >= CROSS) parts.push(mapOf("Cross-attention", attention.cross, tokens, source.tokens, row, pick, false));
      maps.replaceChildren(...parts);
      sentence.replaceChildren(...(at >= CROSS ? [`To produce ${quoted(tokens[row])}, the decoder looks most at `, element("b", {}, element("bdi", {}, quoted(source.tokens[largest(cross)]))), ` in the source, with the weight ${show(cross[largest(cross)], 2)}.`] : at === OWN ? [`To produce ${quoted(tokens[row])}, it looks most at ${quoted(inputs[largest(own)])} among the tokens before it, with the weight ${show(own[largest(own)], 2)}.`] : []));
      bars.replaceChildren(...(at >= NEXT ? [element("h3", {}, `What comes ${row ? `after ${quoted(tokens[row - 1])}` : "first"}?`), barsOf(alternatives[row], ids[row])] : []));
    };
    const name = quoted(tokens[target]), before = inputs.slice(0, target + 1).map(quoted).join(" ");
    steps.update([
      { caption: () => "Causal mask: a row is the token that is produced, a column a token that was read. Hatched cells are later tokens. Their scores become −∞, so their weights are exactly 0.", show: () => draw(MASK, target) },
      { caption: () => `To produce ${name}, the decoder reads ${before}. The query is that of the newest token, ${quoted(inputs[target])}. It is compared with ${target ? `the keys of these ${target + 1} tokens` : "its own key"} only.`, show: () => draw(OWN, target) },
      { caption: () => "Cross-attention: the query is from the decoder, the keys and values are from the encoder’s output. The lines show the weights.", show: () => draw(CROSS, target) },
      { caption: () => `The output u of the last layer is multiplied with every row of the embedding table${model.lesson.bias ? ", and the bias is added" : ""}. A softmax turns these scores into probabilities: ${name} has ${percent(probabilities[target])}.`, show: () => draw(NEXT, target) },
      { frames: tokens.length, caption: (frame) => `And so on, token by token: ${inputs.slice(0, frame + 1).map(display).join(" ")} → ${display(tokens[frame])}.`, show: (frame) => draw(NEXT, frame) },
    ], target);
  }
  return { update };
}

const largest = (weights) => weights.indexOf(Math.max(...weights));

/** Return the mean of all heads of all layers as a map with numbers. */
function mapOf(title, weights, rows, columns, row, onRow, isCausal) {
  const means = rows.map((_, index) => meanOfHeads(weights, index)), map = { rows: rows.length, columns: columns.length, at: (one, other) => means[one][other] };
  const isMasked = (one, other) => isCausal && other > one;
  const describe = (one, other, weight) => (isMasked(one, other) ? `${quoted(rows[one])} may not look at ${quoted(columns[other])}: it comes later` : `${quoted(rows[one])} looked at ${quoted(columns[other])}: ${weight.toFixed(3)}`);
  return element("div", {}, element("h3", {}, title), headMap({ map, rows, columns, row, describe, onRow, isMasked, label: `${title}: mean of all heads` }));
}

const barsOf = (tokens, chosen) => probabilityBars({ tokens: tokens.slice(0, 6), chosen, before: null, onPick: null, label: "Most probable next tokens" });
