/* cells of a matrix; a cell is one value or a block of values */
import { announce, element, hideTip, showTip } from "./dom.js";

// Return the bytes of deflated base64.
export async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Draw cells: blue for positive values, orange for negative ones, a separate color for null.
export function shade(canvas, rows, columns, value) {
  canvas.width = columns;
  canvas.height = rows;
  const style = getComputedStyle(document.documentElement);
  const channels = (name) => style.getPropertyValue(name).split(",").map(Number);
  const low = channels("--map-low"), high = channels("--map-high"), negative = channels("--negative"), masked = channels("--masked");
  const image = new ImageData(columns, rows);
  for (let index = 0; index < rows * columns; index++) {
    const known = value(index), amount = known ?? 1, share = Math.abs(amount);
    const end = known === null ? masked : amount < 0 ? negative : high;
    for (let color = 0; color < 3; color++) image.data[4 * index + color] = low[color] + (end[color] - low[color]) * share;
    image.data[4 * index + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Return the first and last index of a cell when `cells` cells cover `length` indices.
export const span = (cell, cells, length) => [Math.floor((cell * length) / cells), Math.floor(((cell + 1) * length) / cells) - 1];
export const panel = () => element("div", { class: "panel" }, element("canvas", { "aria-hidden": "true" }));

// Navigate the cells of equal panels by pointer and by arrow keys.
// `describe` returns the text of a cell; `moved` and `left` are called after a move and at the end.
export function addNavigation(box, describe, moved = () => {}, left = () => {}) {
  const marker = element("div", { class: "marker", hidden: true });
  const at = { panel: 0, row: 0, column: 0 };
  const panels = () => [...box.querySelectorAll(".panel")];
  const size = () => { const canvas = box.querySelector("canvas"); return [canvas.height, canvas.width]; };

  function placeMarker() {
    const [rows, columns] = size();
    marker.style.cssText = `left:${(100 * at.column) / columns}%;top:${(100 * at.row) / rows}%;width:${100 / columns}%;height:${100 / rows}%`;
    panels()[at.panel].append(marker);
  }
  function leave() {
    marker.hidden = true;
    hideTip();
    left();
  }
  function moveTo(number, row, column) {
    Object.assign(at, { panel: number, row, column });
    placeMarker();
    moved(at);
  }
  box.addEventListener("pointermove", (event) => {
    const number = panels().findIndex((panel) => panel.contains(event.target));
    if (number < 0) return;
    const rect = panels()[number].querySelector("canvas").getBoundingClientRect(), [rows, columns] = size();
    const cell = (offset, length, count) => Math.max(0, Math.min(count - 1, Math.floor((offset / length) * count)));
    moveTo(number, cell(event.clientY - rect.top, rect.height, rows), cell(event.clientX - rect.left, rect.width, columns));
    showTip(describe(at), event.clientX, event.clientY);
  });
  box.addEventListener("pointerleave", () => { hideTip(); if (document.activeElement !== box) left(); });
  box.addEventListener("click", () => box.focus());
  box.addEventListener("focus", () => { placeMarker(); marker.hidden = false; moved(at); announce(describe(at)); });
  box.addEventListener("blur", leave);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const [rows, columns] = size(), last = panels().length * columns - 1;
    const across = Math.max(0, Math.min(last, at.panel * columns + at.column + move[1])); // panels are side by side
    moveTo(Math.floor(across / columns), Math.max(0, Math.min(rows - 1, at.row + move[0])), across % columns);
    marker.hidden = false;
    const rect = marker.getBoundingClientRect();
    showTip(describe(at), rect.right, rect.bottom);
    announce(describe(at));
  });
  return () => { // after a change of data: keep the cell if it still exists
    const [rows, columns] = size();
    Object.assign(at, { panel: Math.min(at.panel, panels().length - 1), row: Math.min(at.row, rows - 1), column: Math.min(at.column, columns - 1) });
    placeMarker();
    return at;
  };
}
