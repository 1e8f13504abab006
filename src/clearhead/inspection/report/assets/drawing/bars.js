// The most probable next tokens, as bars.
import { display, element, percent } from "./dom.js";

/**
 * Return a list of bars.
 *
 * `tokens` are [{id, token, probability}]; `chosen` is the id of the token that the output has. `before` maps ids to
 * probabilities that are marked, those of the unchanged model, or is null. `onPick(token)` is called for a token that is
 * selected; without it, tokens cannot be selected.
 */
export function probabilityBars({ tokens, chosen, before, onPick, label }) {
  return element("ol", { class: "bars", "aria-label": label }, ...tokens.map((one) => {
    const is = one.id === chosen, bar = element("span", { class: "bar" }), own = before?.get(one.id);
    bar.style.setProperty("--share", one.probability.toFixed(4));
    if (own !== undefined) {
      bar.style.setProperty("--before", own.toFixed(4));
      bar.append(element("i", { title: `${percent(own)} in the model` }));
    }
    const share = percent(one.probability), attributes = { class: "choice-bar", "data-id": one.id, "aria-current": is ? "true" : undefined, title: one.token };
    if (onPick) Object.assign(attributes, { type: "button", "data-key": `pick ${one.id}`, "aria-label": `${display(one.token)} ${share}${own === undefined ? "" : `, ${percent(own)} in the model`}`, onclick: () => onPick(one) });
    const name = element("span", { class: "token" }, element("bdi", {}, display(one.token)));
    return element("li", {}, element(onPick ? "button" : "div", attributes, name, bar, element("span", { class: "share" }, share)));
  }));
}
