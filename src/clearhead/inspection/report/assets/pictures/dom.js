// Elements of the pictures, and how they write tokens and numbers.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element. Children are text nodes or elements, so any text is safe. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value; // a server's policy may forbid style attributes
    else if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function svgElement(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value);
  }
  if (text !== undefined) node.textContent = text;
  return node;
}

export const display = (token) => token.replace(/^▁/, "") || token || "·";
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Truncate a text to a number of graphemes, so that emojis and accented letters stay complete. */
export function truncate(text, limit) {
  const graphemes = Array.from(segmenter.segment(text), (part) => part.segment);
  return graphemes.length > limit ? `${graphemes.slice(0, limit - 1).join("")}…` : text;
}

/** Return a probability in percent. */
export function percent(probability) {
  const share = 100 * probability;
  return share > 0 && share < 0.1 ? "< 0.1 %" : `${share.toFixed(share < 9.95 ? 1 : 0)} %`;
}

/**
 * Replace the children of an element, and keep the keyboard focus.
 *
 * Elements that may have the focus have a `data-key`, which stays the same when they are drawn again.
 */
export function redraw(parent, ...children) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  parent.replaceChildren(...children);
  if (key !== undefined) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/**
 * Move the focus with the arrow keys among elements of which one is in the tab order.
 *
 * `neighbor` returns the element to which a key leads, or null.
 */
export function addArrowKeys(parent, neighbor) {
  parent.addEventListener("keydown", (event) => {
    const next = event.key.startsWith("Arrow") ? neighbor(event.target, event.key) : null;
    if (!next) return;
    event.preventDefault();
    for (const one of parent.querySelectorAll('[tabindex="0"]')) one.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}

/** Return the neighbor by arrow key of cell [row, column] in a table of elements; null outside. */
export function gridNeighbor(key, row, column, at) {
  const [down, across] = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[key];
  return at(row + down, column + across);
}
