// The list of changes by hand, at the top of the page while there are any.
import { element } from "@drawing/dom.js";
import { redraw } from "@drawing/keys.js";

const byId = (id) => document.getElementById(id);

/** Show the changes; `onChange` is called after one was undone. */
export function showChanges(edits, onChange) {
  const changes = edits.list();
  byId("changes").hidden = changes.length === 0;
  redraw(byId("change-list"), ...changes.map(({ text, undo }, index) => {
    const undoIt = (event) => {
      undo();
      onChange();
      if (event.detail === 0) focusAfter(index); // by keyboard
    };
    return element("li", {}, element("button", { type: "button", "data-key": `undo ${text}`, "aria-label": `Undo: ${text}`, onclick: undoIt }, text, element("span", { "aria-hidden": "true" }, "×")));
  }));
}

/** Move the focus from a change that was undone to the next one, or to the text. */
function focusAfter(index) {
  const left = byId("change-list").querySelectorAll("button"), field = byId(byId("translator").hidden ? "texts" : "text");
  (left[Math.min(index, left.length - 1)] ?? field).focus();
}

/** Return the words of a text, each with the space after it. */
const wordsOf = (text) => text.match(/\S*(\s|$)/g).filter(Boolean);

/** Return the words of a text as nodes; those that another text has not in this order are marked. */
export function markedWords(text, other) {
  const words = wordsOf(text), others = wordsOf(other), same = (row, column) => words[row].trim() === others[column].trim();
  const longest = Array.from({ length: words.length + 1 }, () => new Uint16Array(others.length + 1)); // of common parts
  for (let row = words.length - 1; row >= 0; row--) {
    for (let column = others.length - 1; column >= 0; column--) {
      longest[row][column] = same(row, column) ? longest[row + 1][column + 1] + 1 : Math.max(longest[row + 1][column], longest[row][column + 1]);
    }
  }
  const nodes = [];
  for (let row = 0, column = 0; row < words.length; row++) {
    while (column < others.length && !same(row, column) && longest[row][column + 1] >= longest[row + 1][column]) column++;
    const isCommon = column < others.length && same(row, column);
    nodes.push(isCommon ? words[row] : element("mark", {}, words[row]));
    if (isCommon) column++;
  }
  return nodes;
}
