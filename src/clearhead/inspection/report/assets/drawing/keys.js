// The keyboard in pictures that are drawn again: focus and arrow keys.

/**
 * Draw the contents of an element again, and keep the keyboard focus.
 *
 * Elements that may have the focus have a `data-key`, which stays the same when they are drawn again.
 */
export function keepFocus(parent, draw) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  draw();
  if (key !== undefined) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/** Replace the children of an element, and keep the keyboard focus. */
export const redraw = (parent, ...children) => keepFocus(parent, () => parent.replaceChildren(...children));

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
