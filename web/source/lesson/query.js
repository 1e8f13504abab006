// Chapter 3: one query and its keys, cell by cell: scores, scaling, softmax, weighted sum.
import { announce, display, element, quoted } from "@drawing/dom.js";
import { keepFocus } from "@drawing/keys.js";
import { choices } from "./choices.js";
import { dot, largestOf, numberCell, rowOf, scrolling, show, softmax, stripes } from "./numbers.js";
import { stepper } from "./stepper.js";
import { isWord } from "./tokens.js";

const SINK = " Many heads put weight that they do not need on punctuation or the end token (Clark et al. 2019).";
const [KEYS, SCORES, SCALED, POWERS, WEIGHTS, VALUES, SUM] = [0, 1, 2, 3, 4, 5, 6];

/** Return all numbers of one query of layer 1. */
export function workOut({ encoder }, head, token) {
  const { shape } = encoder.keys, keys = Array.from({ length: shape[2] }, (_, index) => rowOf(encoder.keys, 0, head, index));
  const values = keys.map((_, index) => rowOf(encoder.values, 0, head, index)), q = rowOf(encoder.queries, 0, head, token);
  const scores = keys.map((key) => dot(q, key)), root = Math.sqrt(q.length), scaled = scores.map((score) => score / root);
  const powers = scaled.map(Math.exp), weights = softmax(scaled);
  const parts = values.map((value, index) => value.map((one) => weights[index] * one));
  return { q, keys, values, scores, root, scaled, powers, total: powers.reduce((sum, one) => sum + one, 0), weights, parts, z: q.map((_, column) => parts.reduce((sum, part) => sum + part[column], 0)) };
}

/** Return {update} of the picture of one query in a box. */
export function queryChapter(box, { choose }) {
  const stage = element("div", { class: "stage" }), work = element("div", { class: "work" });
  const pick = choices("Query", (token) => choose({ token })), heads = choices("Head", (head) => choose({ head }));
  const steps = stepper(box, "one query");
  let selected = null; // the cell that is worked out: {stage, key}
  box.prepend(pick.node, heads.node);
  stage.classList.add("wide");
  box.append(stage, work);

  function update(state) {
    const { source, encoder, token } = state, { tokens } = source, head = Math.min(state.head, encoder.queries.shape[1] - 1);
    const numbers = workOut(state, head, token), count = tokens.length, names = tokens.map(quoted), query = names[token];
    pick.update(tokens, token);
    heads.update(Array.from({ length: encoder.queries.shape[1] }, (_, index) => String(index + 1)), head);
    const best = numbers.weights.indexOf(Math.max(...numbers.weights));
    const draw = (at, key = count - 1) => {
      const select = (stageOf, index) => { selected = { stage: stageOf, key: index }; draw(at, key); announce(work.firstChild.textContent); };
      const one = selected ?? { stage: at, key: at === SCORES ? key : best };
      keepFocus(stage, () => stage.replaceChildren(keyTable({ tokens, numbers, at, key, selected: one, select, token })));
      work.replaceChildren(...workedOut(one, numbers, names, query));
    };
    const step = (at, frames, caption) => ({ frames, caption, show: (frame) => { selected = null; draw(at, frames > 1 ? frame : count - 1); } });
    steps.update([
      step(KEYS, 1, () => `The query q belongs to ${query}. Each of the ${count} tokens, ${query} too, has a key k and a value v. All have ${numbers.q.length} numbers.`),
      step(SCORES, count, (frame) => `Score: multiply q and the key of ${names[frame]} number by number, and add up the ${numbers.q.length} products: ${show(numbers.scores[frame])}.`),
      step(SCALED, 1, () => `Scaling: every score is divided by √d = √${numbers.q.length}${Number.isInteger(numbers.root) ? ` = ${numbers.root}` : ` ≈ ${numbers.root.toFixed(3)}`}. A sum of many products tends to be large, and with large scores one key would get almost all the weight.`),
      step(POWERS, 1, () => `Softmax, first half: the exponential of each scaled score. It is positive, and grows fast. The sum of the column is ${show(numbers.total)}.`),
      step(WEIGHTS, 1, () => `Softmax, second half: divide by that sum, ${show(numbers.total)}. So the weights of the row add up to 1. The largest is ${show(numbers.weights[best])}: ${query} attends most to ${names[best]}.${isWord(tokens[best]) ? "" : SINK}`),
      step(VALUES, 1, () => "Each value v is multiplied by the weight of its token. Values with a small weight fade."),
      step(SUM, 1, () => `The sum of the weighted values is z: what this head found for ${query}, again ${numbers.q.length} numbers.`),
    ]);
  }
  return { update };
}

function keyTable({ tokens, numbers, at, key, selected, select, token }) {
  const { q, keys, values, scores, scaled, powers, weights, parts, z, total, root } = numbers;
  const keyMost = Math.max(...keys.map(largestOf)), valueMost = Math.max(...values.map(largestOf));
  const cell = (stage, index, value, isShown, extra = "") => {
    if (!isShown) return element("td", { class: "waits" }, "?");
    const is = selected.stage === stage && selected.key === index, text = show(value), isFresh = stage === at && (stage !== SCORES || index === key);
    return element("td", { class: `number${extra}${isFresh ? " fresh" : ""}`, "data-value": value.toPrecision(8) }, element("button", { type: "button", "data-key": `cell ${stage} ${index}`, "aria-pressed": String(is), "aria-label": `${NAMES[stage]} of key ${display(tokens[index])}: ${text}. Work it out below`, onclick: () => select(stage, index) }, text));
  };
  const head = ["token", "key k", "score q·k", `÷ ${show(root, Number.isInteger(root) ? 0 : 2)}`, "exp", "weight", at >= VALUES ? "weight × value" : "value v"];
  const body = tokens.map((name, index) => {
    const has = (stage) => at > stage || (at === stage && (stage !== SCORES || index <= key));
    const row = element("tr", { class: index === token ? "own" : "" },
      element("th", { scope: "row" }, element("bdi", {}, display(name))),
      element("td", {}, stripes(`Key of ${display(name)}`, keys[index], { largest: keyMost })),
      cell(SCORES, index, scores[index], has(SCORES)), cell(SCALED, index, scaled[index], has(SCALED)), cell(POWERS, index, powers[index], has(POWERS)),
      cell(WEIGHTS, index, weights[index], has(WEIGHTS), " weight"),
      element("td", {}, stripes(at >= VALUES ? `Weighted value of ${display(name)}` : `Value of ${display(name)}`, at >= VALUES ? parts[index] : values[index], { largest: valueMost })));
    row.children[5].style.setProperty("--weight", has(WEIGHTS) ? weights[index].toFixed(4) : 0);
    return row;
  });
  const blank = () => element("td", {});
  const sum = (value, stage) => (at >= stage ? numberCell(value, { className: "sum" }) : blank());
  const end = element("td", {}, ...(at >= SUM ? [element("button", { type: "button", class: "plain", "data-key": "cell z", "aria-pressed": String(selected.stage === SUM), "aria-label": "Work out z below", onclick: () => select(SUM, 0) }, stripes("z", z, { largest: largestOf(z) }))] : []));
  return scrolling("The query and its keys", element("table", { class: "numbers keys" },
    element("thead", {},
      element("tr", {}, element("th", { scope: "row" }, "query q"), element("td", {}, stripes("The query q", q, { largest: largestOf(q) })), element("td", { colspan: 5, class: "note" }, `of “${display(tokens[token])}”`)),
      element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...body),
    element("tfoot", {}, element("tr", {}, element("th", { scope: "row" }, "sum"), blank(), blank(), blank(), sum(total, POWERS), sum(weights.reduce((all, one) => all + one, 0), WEIGHTS), end))));
}

const NAMES = { [SCORES]: "Score", [SCALED]: "Scaled score", [POWERS]: "Exponential", [WEIGHTS]: "Weight" };

/** Return the calculation of a cell. */
function workedOut({ stage, key }, numbers, names, query) {
  const { q, keys, scores, scaled, powers, weights, total, root, parts, z } = numbers, size = q.length;
  const title = (text) => element("p", {}, element("b", {}, text));
  if (stage <= SCORES) {
    let sum = 0;
    const products = q.map((one, index) => one * keys[key][index]), sums = products.map((one) => (sum += one));
    return [
      title(`q·k of ${query} and ${names[key]}: ${size} products, added up, are ${show(scores[key])}`),
      longTable([["q", q], ["k", keys[key]], ["q × k", products], ["sum so far", sums]], `Products of q and the key of ${names[key]}`),
    ];
  }
  if (stage === SCALED) return [title(`Scaled score of ${names[key]}: ${show(scores[key])} ÷ √${size} = ${show(scores[key])} ÷ ${show(root, Number.isInteger(root) ? 0 : 3)} = ${show(scaled[key])}`)];
  if (stage === POWERS) return [title(`Exponential for ${names[key]}: exp(${show(scaled[key])}) = ${show(powers[key])}`)];
  if (stage === WEIGHTS) return [title(`Weight of ${names[key]}: ${show(powers[key])} ÷ ${show(total)} = ${show(weights[key])}`)];
  return [title(`z: in each column, add up weight × value of the ${names.length} tokens`), longTable([...parts.map((part, index) => [names[index], part]), ["z", z]], "Weighted values and their sum z")];
}

/** Return a table of vectors, one a row, with all their numbers; it scrolls. */
function longTable(rows, label) {
  const header = element("tr", {}, element("td", {}), ...Array.from(rows[0][1], (_, index) => element("th", { scope: "col" }, String(index))));
  return scrolling(label, element("table", { class: "numbers long" }, element("thead", {}, header), element("tbody", {}, ...rows.map(([name, vector], index) => element("tr", { class: index === rows.length - 1 ? "now" : "" }, element("th", { scope: "row" }, name), ...Array.from(vector, (value) => numberCell(value, { decimals: 2 })))))));
}
