// Chapter 4: all heads of a query side by side, joined and projected; then the heads of all layers.
import { display, element, quoted } from "@drawing/dom.js";
import { headMap } from "@drawing/head_map.js";
import { headOf, headTiles } from "@drawing/heads.js";
import { redraw } from "@drawing/keys.js";
import { choices } from "./choices.js";
import { largestOf, numberCell, rowOf, scrolling, show, stripes } from "./numbers.js";
import { workOut } from "./query.js";
import { stepper } from "./stepper.js";

const symbol = (letter, index) => [letter, element("sub", {}, index)];

/** Return {update} of the picture of all heads in a box. */
export function headsChapter(box, { choose }) {
  const stage = element("div", { class: "stage wide" }), pick = choices("Query", (token) => choose({ token }));
  const steps = stepper(box, "many heads"), all = element("div", { class: "attention" });
  let selected = { layer: 0, head: 0 }; // tile
  box.prepend(pick.node);
  box.append(stage);

  function update(state) {
    const { source, encoder, first, token } = state, { tokens } = source, count = encoder.queries.shape[1], query = quoted(tokens[token]);
    pick.update(tokens, token);
    const heads = Array.from({ length: count }, (_, head) => workOut(state, head, token)), attended = rowOf(first.attended, token);
    const joined = Float32Array.from(heads.flatMap(({ z }) => Array.from(z)));
    const best = heads.map(({ weights }) => weights.indexOf(Math.max(...weights)));
    const draw = (shown, ends = 0, isAll = false) => stage.replaceChildren(
      headTable(heads, tokens, shown, token, (head) => { choose({ head }); document.getElementById("chapter-3").scrollIntoView(); }),
      element("div", { class: "flow" }, ...vectorRow("Z", [`the z of all heads in a row: ${joined.length} numbers`], joined, ends > 0), ...vectorRow("MHA", ["Z ", ...symbol("W", "O"), " + ", ...symbol("b", "O"), `: ${attended.length} numbers`], attended, ends > 1)),
      ...(isAll ? [element("h3", {}, `All ${encoder.attention.shape[0]} layers of the encoder: the row of ${query} stands out`), all] : []));
    drawAll(encoder.attention, tokens, token);
    steps.update([
      { frames: count, caption: (frame) => [`Head ${frame + 1} has its own `, ...symbol("W", "Q"), ", ", ...symbol("W", "K"), " and ", ...symbol("W", "V"), `, so its own weights. Its largest weight is that of ${quoted(tokens[best[frame]])}: ${show(heads[frame].weights[best[frame]])}.`], show: (frame) => draw(frame + 1) },
      { caption: () => `The ${count} results z are put in a row: ${count} × ${heads[0].z.length} = ${joined.length} numbers.`, show: () => draw(count, 1) },
      { caption: () => ["The matrix ", ...symbol("W", "O"), " mixes the findings of all heads. The result is as wide as x."], show: () => draw(count, 2) },
      { caption: () => `Each layer has its own heads. Below, each square is a head: its rows are queries, its columns keys, and stronger colors are larger weights. Rows of other queries are paler. Select one to read its weights; those below 0.005 are left out.`, show: () => draw(count, 2, true) },
    ]);
  }

  function drawAll(weights, tokens, row) {
    const { layer, head } = selected, describe = (one, other, weight) => `${quoted(tokens[one])} attends to ${quoted(tokens[other])}: ${weight.toFixed(3)}`;
    const onSelect = (...at) => { selected = { layer: at[0], head: at[1] }; drawAll(weights, tokens, row); };
    redraw(all, headTiles({ weights, row, selected, isOff: () => false, onSelect }), element("div", { class: "large" }, element("h3", {}, `Layer ${layer + 1}, head ${head + 1}`),
      headMap({ map: headOf(weights, layer, head), rows: tokens, columns: tokens, row, describe, onRow: (one) => choose({ token: one }), label: `Weights of layer ${layer + 1}, head ${head + 1}` })));
  }

  return { update };
}

function headTable(heads, tokens, shown, token, onPick) {
  const most = Math.max(...heads.map(({ z }) => largestOf(z)));
  const header = element("tr", {}, element("th", { scope: "col" }, "head"), ...tokens.map((name) => element("th", { scope: "col" }, element("bdi", {}, display(name)))), element("th", { scope: "col" }, "sum"), element("th", { scope: "col" }, "z"));
  const rows = heads.map(({ weights, z }, head) => {
    const isShown = head < shown, cells = weights.map((weight) => {
      const cell = isShown ? numberCell(weight, { decimals: 2, className: "weight" }) : element("td", { class: "waits" }, "?");
      cell.style.setProperty("--weight", isShown ? weight.toFixed(4) : 0);
      return cell;
    });
    const name = element("button", { type: "button", class: "plain", "aria-label": `Head ${head + 1}: show it in chapter 3`, title: "Show this head in chapter 3", onclick: () => onPick(head) }, String(head + 1));
    return element("tr", { class: head === shown - 1 && shown < heads.length ? "now" : "" }, element("th", { scope: "row" }, name), ...cells, element("td", { class: "number sum" }, isShown ? show(weights.reduce((sum, one) => sum + one, 0), 0) : ""), element("td", {}, ...(isShown ? [stripes(`z of head ${head + 1}`, z, { largest: most })] : [])));
  });
  return scrolling("Weights of all heads", element("table", { class: "numbers heads" }, element("caption", {}, `Weights of the query “${display(tokens[token])}” in layer 1`), element("thead", {}, header), element("tbody", {}, ...rows)));
}

function vectorRow(name, text, vector, isShown) {
  return [element("div", { class: `vector${isShown ? "" : " waits"}`, "data-row": name }, element("span", { class: "label" }, element("b", {}, name), " ", ...text), stripes(name, vector))];
}
