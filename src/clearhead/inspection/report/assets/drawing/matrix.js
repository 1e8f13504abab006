/* a symmetric matrix of numbers from −1 to 1, as a table with colors */
import { element, fixed } from "./dom.js";

// Return a table whose rows and columns are numbered from 1, and a function that colors it again.
export function matrixTable(values, caption) {
  const numbers = values.map((_, index) => String(index + 1));
  const header = element("tr", {}, element("td"), ...numbers.map((name) => element("th", { scope: "col" }, name)));
  const rows = values.map((row, index) => element("tr", {}, element("th", { scope: "row" }, numbers[index]),
    ...row.map((value) => element("td", {}, fixed(value, 2)))));
  const table = element("table", { class: "matrix" }, element("caption", {}, caption), element("thead", {}, header), element("tbody", {}, ...rows));
  const redraw = () => {
    values.forEach((row, index) => row.forEach((value, column) => Object.assign(rows[index].children[column + 1].style, colorsOf(value))));
  };
  redraw();
  return { table, redraw };
}

// Return the background of a value, and black or white text, whichever is easier to read on it.
function colorsOf(value) {
  const style = getComputedStyle(document.documentElement);
  const channels = (name) => style.getPropertyValue(name).split(",").map(Number);
  const low = channels("--map-low"), end = channels(value < 0 ? "--negative" : "--map-high"), share = Math.min(1, Math.abs(value));
  const background = low.map((from, index) => Math.round(from + (end[index] - from) * share));
  const linear = background.map((one) => one / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return { background: `rgb(${background})`, color: luminance > 0.179 ? "#000" : "#fff" };
}
