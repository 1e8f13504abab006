// The beams of a search as the tree of drawing/beams.js.
import { drawBeams } from "@drawing/beams.js";
import { element } from "@drawing/dom.js";
import { keepFocus } from "@drawing/keys.js";

const MAX_STEPS = 60;

/**
 * Return {columns, ends} of a search, in an order in which the links of beams do not cross.
 *
 * `given` are tokens [{id, token}] before the search, `result` that of `translate`. Nodes have the `ids` of the output
 * up to them.
 */
export function treeOf(given, { beams, hypotheses, ids: best }) {
  const isBest = (ids) => ids.length <= best.length && ids.every((id, index) => id === best[index]);
  const columns = given.map(({ id, token }, index) => {
    const ids = given.slice(0, index + 1).map((one) => one.id);
    return [{ id, token, ids, key: ids.join(" "), from: 0, byHand: true, best: isBest(ids), log_prob: 0, total: 0, alternatives: [] }];
  });
  const ends = new Map();
  let kept = columns.at(-1) ?? [null], order = new Map([[0, 0]]); // of the step before: its beams, and their places
  for (const [index, candidates] of beams.entries()) {
    const step = given.length + index;
    const nodes = candidates.map(({ id, token, parent, logProb, score, ended, kept: place }) => {
      const ids = [...(kept[parent]?.ids ?? []), id];
      return { id, token, ids, key: ids.join(" "), from: order.get(parent), log_prob: logProb, total: score, alternatives: [], ended, place, step };
    });
    for (const node of nodes) if (node.ended) ends.set(node.key, node);
    kept = nodes.filter(({ place }) => place !== null).sort((one, other) => one.place - other.place);
    for (const node of kept) node.best = isBest(node.ids);
    const column = [...kept].sort((one, other) => one.from - other.from || other.total - one.total);
    order = new Map(kept.map((node, place) => [place, column.indexOf(node)]));
    if (column.length) columns.push(column);
  }
  return { columns, ends: hypotheses.map(({ ids }, rank) => ({ ...ends.get(ids.join(" ")), rank })).filter(({ key }) => key) };
}

/** Draw the tree of a search; `onPick(ids)` is called for a node. */
export function showTree(parent, given, result, onPick) {
  const box = element("div");
  keepFocus(parent, () => {
    parent.replaceChildren(box);
    const tree = treeOf(given, result), columns = tree.columns.slice(0, MAX_STEPS), ends = tree.ends.filter(({ step }) => step < MAX_STEPS);
    if (columns.length + ends.length) drawBeams(box, { start: "start", columns, ends, onPick: ({ ids }) => onPick(ids) });
    if (columns.length < tree.columns.length) parent.append(element("p", { class: "hint" }, `The first ${MAX_STEPS} of ${tree.columns.length} steps are shown.`));
  });
}
