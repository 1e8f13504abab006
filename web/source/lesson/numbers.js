// Numbers in the pictures: texts, cells, and vectors as stripes of color.
import { shade } from "@drawing/cells.js";
import { element } from "@drawing/dom.js";

/** Return a number with a true minus. */
export const show = (value, decimals = 3) => {
  const size = Math.abs(value), large = size >= 1e9 ? value.toExponential(2) : value.toLocaleString("en", { maximumFractionDigits: 0 });
  const text = size >= 1e5 ? large : value.toFixed(size >= 1000 ? Math.min(1, decimals) : decimals);
  return /[1-9]/.test(text) ? text.replace("-", "−") : text.replace("-", "");
};

/** Return row `index` of the last axis of an array, at the given indices of the axes before it. */
export function rowOf({ data, shape }, ...indices) {
  const width = shape.at(-1), row = indices.reduce((sum, index, axis) => sum * shape[axis] + index, 0);
  return data.subarray(row * width, (row + 1) * width);
}

export const largestOf = (numbers) => numbers.reduce((largest, one) => Math.max(largest, Math.abs(one)), 0) || 1;

/** Return a cell of a table with a number; tests read its exact value. */
export function numberCell(value, { decimals = 3, className = "", text = show(value, decimals) } = {}) {
  return element("td", { class: `number ${className}`.trim(), "data-value": value.toPrecision(8) }, text);
}

/**
 * Return a vector, or several rows of equal length, as stripes: blue is positive, orange negative.
 *
 * The color of `largest` is the darkest; by default that is the largest number of the vector. `name` is its name for
 * screen readers.
 */
export function stripes(name, rows, { largest, className = "" } = {}) {
  const list = Array.isArray(rows) ? rows : [rows], columns = list[0].length, most = largest ?? Math.max(...list.map(largestOf));
  const canvas = element("canvas", { "aria-hidden": "true" });
  shade(canvas, list.length, columns, (index) => Math.max(-1, Math.min(1, list[Math.floor(index / columns)][index % columns] / most)));
  const low = Math.min(...list.map((row) => Math.min(...row))), high = Math.max(...list.map((row) => Math.max(...row)));
  const text = `${name}: ${list.length > 1 ? `${list.length} rows of ` : ""}${columns} numbers from ${show(low, 2)} to ${show(high, 2)}`;
  return element("span", { class: `stripes ${className}`.trim(), role: "img", "aria-label": text, title: text, style: `--rows: ${list.length}; --columns: ${columns}` }, canvas);
}

/** Return a table in a box that scrolls, with the keyboard too. */
export const scrolling = (label, table) => element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);

/** Return the dot product of two vectors. */
export const dot = (one, other) => one.reduce((sum, value, index) => sum + value * other[index], 0);

/** Return the sum of two vectors. */
export const add = (one, other) => one.map((value, index) => value + other[index]);

/** Return the mean and the variance of a vector. */
export function moments(vector) {
  const mean = vector.reduce((sum, one) => sum + one, 0) / vector.length;
  return { mean, variance: vector.reduce((sum, one) => sum + (one - mean) ** 2, 0) / vector.length };
}

/** Return the weights of scores. */
export function softmax(scores) {
  const largest = Math.max(...scores), powers = scores.map((one) => Math.exp(one - largest)), total = powers.reduce((sum, one) => sum + one, 0);
  return powers.map((one) => one / total);
}
