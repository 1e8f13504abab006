/* the tree of a beam search: one column for each step, in as many bands as the width requires */
import { display, fit, fixed, hideTip, showTip, svgElement } from "./dom.js";

const ROW = 36, BOX = 30, GUTTER = 72, GAP = 24, BAND = 22; // heights and widths in pixels
const LEAST = 88, MOST = 136; // width of a column

// Draw a search into an element, and again after a change of its width.
//   start: the token before the first step.
//   columns: for each step its beams, as { token, from, log_prob, total, best, alternatives }; `from` is the index of
//     the parent in the column before.
//   ends: where outputs end, as { rank, step, from, token, log_prob, total }; the best has rank 0.
//   onPick: called with the node of a beam or an end that is selected. Without it, nodes cannot be selected.
// A beam or an end may also have a `key`, which stays the same when the tree is drawn again, and be `byHand`.
export function drawBeams(parent, { start, columns, ends, onPick = null }) {
  const picture = svgElement("svg", { role: "group", "aria-label": "Tree of the beams, by step from left to right. Arrow keys move to parent, child and neighbors." });
  const nodes = nodesOf(columns, ends), state = { current: nodes[0], width: 0 };
  parent.append(picture);
  const draw = () => {
    const width = Math.floor(parent.clientWidth);
    if (!width || width === state.width) return;
    state.width = width;
    const focused = picture.contains(document.activeElement), { bands, wide } = bandsOf(nodes, columns, width - 2);
    const height = bands.at(-1).bottom;
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) picture.setAttribute(name, value);
    picture.replaceChildren();
    for (const band of bands) drawBand(picture, { band, wide, nodes, columns, start, onPick });
    for (const node of nodes) node.shape.setAttribute("tabindex", node === state.current ? "0" : "-1");
    if (focused) state.current.shape.focus();
  };
  picture.addEventListener("focusin", (event) => {
    const node = nodes.find((one) => one.shape === event.target);
    if (!node) return;
    state.current.shape.setAttribute("tabindex", "-1");
    node.shape.setAttribute("tabindex", "0");
    state.current = node;
  });
  picture.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
    const next = neighbor(nodes, state.current, event.key);
    if (next === undefined) return;
    event.preventDefault();
    next?.shape.focus();
  });
  new ResizeObserver(draw).observe(parent);
  draw();
}

function nodesOf(columns, ends) {
  const beams = columns.flatMap((column, step) => column.map((node, beam) => ({ ...node, step, beam })));
  return beams.concat(ends.map((end) => ({ ...end, best: end.rank === 0, alternatives: [] })));
}

// Return the node to which an arrow key moves, null at the end, undefined for another key.
function neighbor(nodes, at, key) {
  const column = nodes.filter((one) => one.step === at.step), index = column.indexOf(at);
  if (key === "ArrowDown") return column[index + 1] ?? null;
  if (key === "ArrowUp") return column[index - 1] ?? null;
  if (key === "ArrowLeft") return nodes.find((one) => one.step === at.step - 1 && one.beam === at.from) ?? null;
  if (key !== "ArrowRight") return undefined;
  const children = nodes.filter((one) => one.step === at.step + 1 && one.from === at.beam);
  return children.find((one) => one.best) ?? children[0] ?? null;
}

// Divide the steps into bands of equal width, and give each node its row: ends are below the beams of their band.
function bandsOf(nodes, columns, width) {
  const steps = Math.max(...nodes.map((one) => one.step)) + 1;
  const most = Math.max(1, Math.floor((width - GUTTER + GAP) / LEAST)), count = Math.ceil(steps / most), each = Math.ceil(steps / count);
  const bands = [];
  for (let first = 0, top = 0; first < steps; first += each) {
    const inside = nodes.filter((one) => one.step >= first && one.step < first + each);
    const beams = Math.max(1, ...columns.slice(Math.max(0, first - 1), first + each).map((column) => column.length));
    const below = {};
    for (const node of inside) node.row = node.rank === undefined ? node.beam : beams + (below[node.step] = (below[node.step] ?? -1) + 1);
    const bottom = top + ROW * (Math.max(...inside.map((one) => one.row), beams - 1) + 1) + BAND;
    bands.push({ first, last: first + each, top, bottom });
    top = bottom;
  }
  return { bands, wide: Math.min(MOST, (width - GUTTER + GAP) / each) };
}

const middle = (band, row) => band.top + row * ROW + ROW / 2;

function drawBand(picture, { band, wide, nodes, columns, start, onPick }) {
  const inside = nodes.filter((one) => one.step >= band.first && one.step < band.last);
  const before = band.first ? columns[band.first - 1] : [{ token: start, best: true }];
  for (const parent of new Set(inside.filter((one) => one.step === band.first).map((one) => one.from))) {
    if (parent === null) continue;
    const text = fit(display(before[parent].token), GUTTER - 20);
    picture.append(svgElement("text", { x: GUTTER - 16, y: middle(band, parent) + 4, "text-anchor": "end", class: before[parent].best && band.first ? "parent best" : "parent" }, text));
  }
  const left = (node) => GUTTER + (node.step - band.first) * wide;
  for (const node of inside.filter((one) => one.from !== null)) {
    const x = left(node), from = node.step === band.first ? GUTTER - 12 : x - GAP, bend = (from + x) / 2;
    const [begin, end] = [middle(band, node.step ? node.from : 0), middle(band, node.row)];
    picture.append(svgElement("path", { class: `link${marksOf(node)}`, d: `M${from},${begin} C${bend},${begin} ${bend},${end} ${x},${end}` }));
  }
  for (const node of inside) picture.append((node.shape = shapeOf(node, left(node), middle(band, node.row), wide - GAP, onPick)));
}

const marksOf = ({ best, byHand }) => `${best ? " best" : ""}${byHand ? " by-hand" : ""}`;

function shapeOf(node, x, y, width, onPick) {
  const others = node.alternatives.map((other) => `${display(other.token)} ${fixed(other.log_prob, 2)}`).join(", ");
  const isEnd = node.rank !== undefined, first = isEnd ? `Output ${node.rank + 1} ends with ${display(node.token)}` : display(node.token);
  const numbers = node.byHand ? "chosen by hand" : `${fixed(node.log_prob, 3)}, total ${fixed(node.total, 3)}`;
  const label = `${first}: ${numbers}${others ? `. Most probable: ${others}` : ""}`;
  const shape = svgElement("g", { class: `node${marksOf(node)}${isEnd ? " end" : ""}`, role: onPick ? "button" : "img", "aria-label": label });
  if (node.key !== undefined) shape.dataset.key = node.key;
  const inset = isEnd ? 9 : 7, name = `${isEnd ? `${node.rank + 1}. ` : ""}${display(node.token)}`;
  shape.append(svgElement("rect", { x, y: y - BOX / 2, width, height: BOX, rx: isEnd ? BOX / 2 : 7 }),
    svgElement("text", { x: x + inset, y: y - 2 }, fit(name, width - 2 * inset)),
    svgElement("text", { x: x + inset, y: y + 11, class: "dim" }, node.byHand ? "by hand" : fixed(node.total, 2)));
  shape.addEventListener("pointermove", (event) => showTip(label, event.clientX, event.clientY));
  shape.addEventListener("pointerleave", hideTip);
  shape.addEventListener("focus", () => { const box = shape.getBoundingClientRect(); showTip(label, box.left, box.bottom); });
  shape.addEventListener("blur", hideTip);
  if (onPick) addPick(shape, () => onPick(node));
  return shape;
}

function addPick(shape, pick) {
  shape.addEventListener("click", () => { hideTip(); pick(); });
  shape.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pick();
  });
}
