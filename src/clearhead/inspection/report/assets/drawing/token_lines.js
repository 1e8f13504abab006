// Source and target tokens in two rows, with lines from the chosen target token to what it looked at.
import { display, element, percent, quoted, svgElement } from "./dom.js";
import { addArrowKeys, redraw } from "./keys.js";

const MIN_WEIGHT = 0.02; // of a line

/**
 * Return {node, update}: `update` draws tokens and lines.
 *
 * It takes {source, target, weights, chosen}. A token is {token, isMasked, action} or {token, probability, byHand};
 * `action` names what selecting a source token does. `weights` are those of the source tokens for the chosen target token. `onSource(index)` and `onTarget(index)` are called for a
 * token that is selected; without `onSource`, source tokens cannot be selected.
 */
export function tokenLines({ onSource, onTarget }) {
  const sourceList = element("ol", { class: "chips", id: "source", dir: "auto", "aria-label": "Source tokens" });
  const targetList = element("ol", { class: "chips target", id: "target", dir: "auto", "aria-label": "Target tokens" });
  const picture = svgElement("svg", { "aria-hidden": "true" });
  const node = element("div", { class: "token-lines" }, picture, sourceList, targetList);
  let state = { source: [], target: [], weights: [], chosen: null };

  function draw() {
    const { weights, chosen } = state, own = targetList.children[chosen], box = node.getBoundingClientRect();
    picture.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    const lines = [...picture.children];
    state.source.forEach((_, index) => {
      const line = lines[index] ?? picture.appendChild(svgElement("path"));
      const weight = own ? weights[index] ?? 0 : 0;
      line.style.opacity = weight < MIN_WEIGHT ? 0 : 0.25 + 0.75 * weight;
      line.style.strokeWidth = `${1 + 9 * weight}px`;
      if (own) line.setAttribute("d", curve(sourceList.children[index].getBoundingClientRect(), own.getBoundingClientRect(), box));
    });
    for (const line of lines.slice(state.source.length)) line.remove();
  }

  function update(next) {
    state = next;
    const { source, target, weights, chosen } = state;
    redraw(sourceList, ...source.map((one, index) => {
      const chip = chipOf(one, `source ${index}`, index === 0, one.isMasked ? "masked" : "", onSource && (() => onSource(index)));
      if (onSource) chip.firstChild.setAttribute("aria-pressed", String(Boolean(one.isMasked)));
      chip.style.setProperty("--weight", chosen === null ? 0 : (weights[index] ?? 0).toFixed(3));
      return chip;
    }));
    redraw(targetList, ...target.map((one, index) => {
      const chip = chipOf(one, `target ${index}`, index === (chosen ?? 0), one.byHand ? "by-hand" : "", () => onTarget(index));
      if (index === chosen) chip.firstChild.setAttribute("aria-current", "true");
      if (one.probability !== undefined) {
        chip.firstChild.append(element("small", { title: "probability" }, percent(one.probability)));
        chip.firstChild.setAttribute("aria-label", `${display(one.token)} ${percent(one.probability)}`);
      }
      return chip;
    }));
    draw();
  }

  for (const list of [sourceList, targetList]) {
    addArrowKeys(list, (chip, key) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      const next = step && list.children[[...list.children].indexOf(chip.closest("li")) + step * (getComputedStyle(list).direction === "rtl" ? -1 : 1)];
      return next ? next.firstChild : null;
    });
  }
  new ResizeObserver(draw).observe(node);
  return { node, update };
}

function chipOf({ token, action }, key, isFirst, kind, onclick) {
  if (!onclick) return element("li", {}, element("span", { class: `chip ${kind}`.trim(), title: token }, element("bdi", {}, display(token))));
  const name = action ? { title: `${action} ${token}`, "aria-label": `${action} ${quoted(token)}` } : { title: token };
  const attributes = { type: "button", class: kind, "data-key": key, tabindex: isFirst ? "0" : "-1", ...name, onclick };
  return element("li", {}, element("button", attributes, element("bdi", {}, display(token))));
}

/** Return a curve from the lower edge of one box to the upper edge of another. */
function curve(from, to, { left, top }) {
  const [x, y] = [from.left + from.width / 2 - left, from.bottom - top], [toX, toY] = [to.left + to.width / 2 - left, to.top - top];
  const bend = (y + toY) / 2;
  return `M${x},${y} C${x},${bend} ${toX},${bend} ${toX},${toY}`;
}
