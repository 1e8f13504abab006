// Rows of buttons of which one is chosen: a token, a head, a number of beams.
import { display, element } from "@drawing/dom.js";
import { addArrowKeys, redraw } from "@drawing/keys.js";

/** Return a row of buttons, {node, update}; `update(names, chosen)` draws it, and `onPick(index)` is called for one. */
export function choices(label, onPick) {
  const list = element("ol", { class: "chips choices", "aria-label": label, dir: "auto" });
  addArrowKeys(list, (button, key) => {
    const item = button.closest("li"), step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    const items = [...list.children], next = step && items[items.indexOf(item) + step * (getComputedStyle(list).direction === "rtl" ? -1 : 1)];
    return next ? next.firstChild : null;
  });
  const update = (names, chosen) => redraw(list, ...names.map((name, index) => element("li", {}, element("button", {
    type: "button", "data-key": `${label} ${index}`, tabindex: index === chosen ? "0" : "-1", "aria-pressed": String(index === chosen), onclick: () => onPick(index),
  }, element("bdi", {}, display(name))))));
  return { node: element("div", { class: "choice" }, element("span", { "aria-hidden": "true" }, label), list), update };
}
