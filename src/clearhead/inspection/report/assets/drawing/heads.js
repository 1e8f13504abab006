// Small multiples: the attention weights of all heads of all layers, one tile each.
import { shade } from "./cells.js";
import { element } from "./dom.js";
import { addArrowKeys, gridNeighbor } from "./keys.js";

export const MAX_TOKENS = 60; // rows and columns of a map: the first ones

const PALE = 0.3; // share of the color of rows that are not chosen

/** Return the weights of a head as {rows, columns, at(row, column)}; weights are {data, shape (N, H, L, M)}. */
export function headOf({ data, shape }, layer, head) {
  const [, heads, rows, columns] = shape, start = (layer * heads + head) * rows * columns;
  return { rows: Math.min(rows, MAX_TOKENS), columns: Math.min(columns, MAX_TOKENS), at: (row, column) => data[start + row * columns + column] };
}

/** Return the mean of all heads of all layers for one row, as an array of M weights; heads that are off do not count. */
export function meanOfHeads({ data, shape }, row, isOff = () => false) {
  const [layers, heads, rows, columns] = shape, mean = new Float32Array(columns);
  const maps = Array.from({ length: layers * heads }, (_, map) => map).filter((map) => !isOff(Math.floor(map / heads), map % heads));
  for (const map of maps) {
    for (let column = 0; column < columns; column++) mean[column] += data[(map * rows + row) * columns + column] / maps.length;
  }
  return mean;
}

/**
 * Return the tiles of all heads: a row for each layer.
 *
 * `row` is the chosen query, or null for all; `selected` is {layer, head}; `isOff(layer, head)` tells whether a head is
 * switched off. `onSelect(layer, head)` is called for a tile.
 */
export function headTiles({ weights, row, selected, isOff, onSelect }) {
  const [layers, heads] = weights.shape, tiles = [];
  const box = element("div", { class: "tiles", role: "group", "aria-label": "Heads; each row is a layer", style: `--heads: ${heads}` });
  box.append(element("span", { class: "corner", "aria-hidden": "true" }, "head"));
  for (let head = 0; head < heads; head++) box.append(element("span", { class: "number", "aria-hidden": "true" }, String(head + 1)));
  for (let layer = 0; layer < layers; layer++) {
    box.append(element("span", { class: "name", "aria-hidden": "true" }, "layer ", element("b", {}, String(layer + 1))));
    for (let head = 0; head < heads; head++) {
      const tile = tileOf(headOf(weights, layer, head), row), isSelected = layer === selected.layer && head === selected.head, off = isOff(layer, head);
      const button = element("button", {
        type: "button", class: `tile${off ? " off" : ""}`, "data-key": `tile ${layer} ${head}`, tabindex: isSelected ? "0" : "-1",
        "aria-pressed": String(isSelected), "aria-label": `Layer ${layer + 1}, head ${head + 1}${off ? ", switched off" : ""}`, onclick: () => onSelect(layer, head),
      }, tile);
      tiles.push(button);
      box.append(button);
    }
  }
  addArrowKeys(box, (button, key) => {
    const index = tiles.indexOf(button);
    const inside = (layer, head) => (head < 0 || head >= heads ? null : tiles[layer * heads + head] ?? null);
    return gridNeighbor(key, Math.floor(index / heads), index % heads, inside);
  });
  return box;
}

function tileOf({ rows, columns, at }, chosen) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  shade(canvas, rows, columns, (index) => {
    const row = Math.floor(index / columns), weight = at(row, index % columns);
    return chosen === null || row === chosen ? weight : PALE * weight;
  });
  return canvas;
}
