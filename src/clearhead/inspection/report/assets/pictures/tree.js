// Beams as a tree: a column for each step, with the beams that go on and the outputs that end there.
import { addArrowKeys, display, percent, svgElement, truncate } from "./dom.js";

const TALL = 46, HIGH = 38, MARGIN = 56, GAP = 24;
const LEAST = 96, MOST = 134; // widths of a column

/**
 * Return the nodes of a tree in columns, in an order without crossings.
 *
 * `given` are tokens before the search; `steps` its candidates as `translate` returns them, `best` the ids of the best
 * output. A node has {token, ids, column, lane, parent, isBest, isEnd, isGiven, probability, score}.
 */
export function layOut({ given, steps, best, beams }) {
  const columns = [];
  let kept = [null];
  for (const [index, { id, token }] of given.entries()) {
    const ids = given.slice(0, index + 1).map((one) => one.id);
    kept = [{ id, token, ids, parent: kept[0], isGiven: true, isBest: true }];
    columns.push(kept);
  }
  for (const candidates of steps) {
    const parents = kept, shown = candidates.filter((one, rank) => one.kept !== null || (one.ended && rank < beams));
    const nodes = shown.map((one) => {
      const parent = parents[one.parent], ids = [...(parent?.ids ?? []), one.id];
      const isBest = ids.length <= best.length && ids.every((id, index) => id === best[index]) && (!one.ended || ids.length === best.length);
      return { ...one, ids, parent, isBest, isEnd: one.ended && one.kept === null, probability: Math.exp(one.logProb) };
    });
    kept = [];
    for (const node of nodes) if (node.kept !== null) kept[node.kept] = node;
    nodes.sort((one, other) => (one.parent?.lane ?? 0) - (other.parent?.lane ?? 0) || other.score - one.score);
    columns.push(nodes);
    nodes.forEach((node, lane) => { node.lane = lane; });
  }
  columns.forEach((nodes, column) => nodes.forEach((node, lane) => Object.assign(node, { column, lane })));
  return columns;
}

/**
 * Return the tree as SVG.
 *
 * `room` is the width that it should have, if its nodes stay readable. `onPick(ids)` is called for a node, with the
 * token ids from the start up to it.
 */
export function beamTree({ given, steps, best, beams, room, onPick }) {
  const columns = layOut({ given, steps, best, beams }), rows = Math.max(1, ...columns.map((nodes) => nodes.length));
  const wide = Math.max(LEAST, Math.min(MOST, (room - MARGIN + GAP - 4) / columns.length)), box = wide - GAP;
  const width = MARGIN + columns.length * wide - GAP + 3, height = rows * TALL + 8;
  const picture = svgElement("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Beams by step" });
  const place = (node) => ({ x: MARGIN + node.column * wide, y: 4 + TALL * (node.lane + (rows - columns[node.column].length) / 2) + TALL / 2 });
  const start = { x: MARGIN - GAP, y: height / 2 };
  picture.append(svgElement("text", { x: 2, y: height / 2 + 4, class: "dim" }, "start"));
  const nodes = columns.flat(), byNode = new Map(), order = (one, other) => Number(one.isBest) - Number(other.isBest);
  for (const node of [...nodes].sort(order)) picture.append(link(node.parent ? shift(place(node.parent), box) : start, place(node), node));
  nodes.forEach((node, index) => {
    const group = nodeOf(node, { ...place(node), box }, index === 0, onPick);
    byNode.set(node, group);
    picture.append(group);
  });
  const groups = new Map([...byNode].map(([node, group]) => [group, node]));
  addArrowKeys(picture, (group, key) => byNode.get(neighbor(groups.get(group), key, columns)) ?? null);
  return picture;
}

const shift = ({ x, y }, by) => ({ x: x + by, y });

function neighbor(node, key, columns) {
  if (!node) return null;
  if (key === "ArrowLeft") return node.parent;
  if (key === "ArrowRight") {
    const children = (columns[node.column + 1] ?? []).filter(({ parent }) => parent === node);
    return children.find(({ isBest }) => isBest) ?? children[0];
  }
  return columns[node.column][node.lane + (key === "ArrowDown" ? 1 : -1)];
}

const kindOf = ({ isBest, isEnd, isGiven }) => `${isBest ? " best" : ""}${isEnd ? " end" : ""}${isGiven ? " by-hand" : ""}`;

function link(from, to, node) {
  const bend = (from.x + to.x) / 2;
  return svgElement("path", { class: `link${kindOf(node)}`, d: `M${from.x},${from.y} C${bend},${from.y} ${bend},${to.y} ${to.x},${to.y}` });
}

function nodeOf(node, { x, y, box }, isFirst, onPick) {
  const { token, ids, isEnd, isGiven, isBest, probability, score } = node;
  const numbers = isGiven ? "chosen by hand" : `probability ${percent(probability)}, total log-probability ${score.toFixed(2)}`;
  const label = `${display(token)}: ${numbers}${isEnd ? "; an output ends here" : ""}${isBest ? "; on the best output" : ""}. Continue from here`;
  const group = svgElement("g", { class: `node${kindOf(node)}`, tabindex: isFirst ? "0" : "-1", role: "button", "aria-label": label, "data-key": `node ${ids.join(" ")}`, "data-ids": ids.join(" ") });
  group.append(svgElement("title", {}, label), svgElement("rect", { x, y: y - HIGH / 2, width: box, height: HIGH, rx: isEnd ? HIGH / 2 : 7 }));
  const left = x + (isEnd ? 14 : 8), room = Math.floor((box - (isEnd ? 22 : 12)) / 7.5);
  group.append(svgElement("text", { x: left, y: isGiven ? y + 5 : y - 1 }, truncate(display(token), room)));
  if (!isGiven) group.append(svgElement("text", { x: left, y: y + 13, class: "dim" }, percent(probability)));
  const pick = () => onPick(ids);
  group.addEventListener("click", pick);
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pick();
  });
  return group;
}
