// One head, large: a table of weights with the tokens at its sides.
import { display, element } from "./dom.js";
import { addArrowKeys, gridNeighbor } from "./keys.js";

const MAX_NUMBERS = 18; // columns up to which the cells show their weights

/**
 * Return a table of weights from 0 to 1, with a line of text about the cell under the pointer or the focus.
 *
 * `map` is {rows, columns, at(row, column)}; `rows` and `columns` are tokens. `describe(row, column, weight)` returns
 * the line of a cell. `row` is the chosen row, or null; `onRow(row)` is called for the token at a row.
 * `isMasked(row, column)` marks cells that a mask excludes.
 */
export function headMap({ map, rows, columns, row: chosen, label, describe, onRow, isMasked = () => false }) {
  const line = element("p", { class: "hint cell", "aria-hidden": "true" }, "Point at a cell, or move through the cells with the arrow keys.");
  const table = element("table", { class: `map${columns.length > MAX_NUMBERS ? " dense" : ""}`, role: "grid", "aria-label": label });
  const cells = rows.map((_, row) => columns.map((_, column) => cellOf(map.at(row, column), describe(row, column, map.at(row, column)), columns.length, isMasked(row, column))));
  table.append(element("thead", {}, element("tr", {}, element("td", {}), ...columns.map((token) => element("th", { scope: "col", title: token }, element("span", {}, element("bdi", {}, display(token))))))));
  table.append(element("tbody", {}, ...rows.map((token, row) => {
    const name = element("button", { type: "button", "data-key": `row ${row}`, "aria-pressed": String(row === chosen), title: token, onclick: () => onRow(row) }, element("bdi", {}, display(token)));
    return element("tr", { class: chosen === null || chosen === row ? "" : "pale" }, element("th", { scope: "row" }, name), ...cells[row]);
  })));
  cells[chosen ?? 0]?.[0]?.setAttribute("tabindex", "0");
  const show = ({ target }) => {
    const text = target.closest("td[aria-label]")?.getAttribute("aria-label");
    if (text) line.textContent = text;
  };
  table.addEventListener("pointerover", show);
  table.addEventListener("focusin", show);
  addArrowKeys(table, (cell, key) => {
    const row = cells.findIndex((line) => line.includes(cell));
    return row < 0 ? null : gridNeighbor(key, row, cells[row].indexOf(cell), (down, across) => cells[down]?.[across] ?? null);
  });
  return element("div", { class: "map-box" }, element("div", { class: "scroll", tabindex: "-1" }, table), line);
}

function cellOf(weight, text, columns, isMasked) {
  const number = columns <= MAX_NUMBERS && weight >= 0.005 ? (weight >= 0.995 ? "1" : weight.toFixed(2).slice(1)) : "";
  const cell = element("td", { tabindex: "-1", "aria-label": text, "data-weight": weight.toFixed(6) }, number);
  cell.style.setProperty("--weight", Math.min(1, Math.max(0, weight)).toFixed(3));
  if (weight > 0.58) cell.classList.add("high"); // where black is easier to read than white, or white than black
  if (weight > 0.71) cell.classList.add("higher");
  cell.classList.toggle("masked", isMasked);
  return cell;
}
