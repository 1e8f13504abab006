/* lines from queries to keys */
import { display, element, fit, svgElement } from "./dom.js";

export const MAX_LINES = 60;
const MIN_WEIGHT = 0.04;
const LABEL = 126; // width of a column of labels

// Draw the lines of a head, and return a function that highlights one row, or all rows for null.
// `numbers` are bytes, row by row; the byte 255 is the weight `largest`.
export function drawLines(parent, { queries, keys, rows, columns, numbers, largest, queryLabels, keyTokens }) {
  const step = 21, width = 420;
  if (rows < queries || columns < keys || rows > MAX_LINES || columns > MAX_LINES) {
    parent.replaceChildren(element("p", { class: "hint" }, `Lines are drawn for up to ${MAX_LINES} tokens.`));
    return () => {};
  }
  const height = step * Math.max(rows, columns) + 10;
  const picture = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": "Lines from each query, on the left, to the keys that it attends to" });
  const paths = [];
  for (let row = 0; row < rows; row++) {
    const most = Math.max(...numbers.subarray(row * columns, (row + 1) * columns));
    for (let column = 0; column < columns; column++) {
      const share = (numbers[row * columns + column] * largest) / 255;
      if (share < MIN_WEIGHT && (numbers[row * columns + column] < most || most === 0)) continue;
      const line = svgElement("line", { x1: LABEL + 6, y1: row * step + 14, x2: width - LABEL - 6, y2: column * step + 14, stroke: "var(--accent)", "stroke-width": 0.6 + 4 * share, "stroke-opacity": 0.12 + 0.88 * share });
      paths.push([row, line]);
      picture.append(line);
    }
  }
  const highlight = (row) => { for (const [own, line] of paths) line.style.opacity = row === null || own === row ? 1 : 0.06; };
  const word = (token, x, y, anchor) => {
    const text = svgElement("text", { x, y, "text-anchor": anchor }, fit(token, LABEL - 4));
    picture.append(text);
    return text;
  };
  for (let row = 0; row < rows; row++) {
    const text = word(queryLabels[row] ?? "", LABEL, row * step + 18, "end");
    text.addEventListener("pointerenter", () => highlight(row));
    text.addEventListener("pointerleave", () => highlight(null));
  }
  for (let column = 0; column < columns; column++) word(display(keyTokens[column] ?? ""), width - LABEL, column * step + 18, "start");
  parent.replaceChildren(element("p", { class: "hint" }, `Lines show the largest weight of each query, and all weights of at least ${MIN_WEIGHT}.`), picture);
  return highlight;
}
