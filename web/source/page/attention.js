// The attention of a text: all heads of a part in small, and one in large with its switches.
import { element, quoted } from "@drawing/dom.js";
import { headMap } from "@drawing/head_map.js";
import { headOf, headTiles, MAX_TOKENS } from "@drawing/heads.js";
import { redraw } from "@drawing/keys.js";
import { PARTS } from "./edits.js";

const EXPLANATIONS = {
  cross: "A row shows which source tokens the decoder looked at when it produced the token at its left.",
  decoder: "A row shows which tokens before it the decoder looked at when it produced the token at its left. Later tokens are hidden from it.",
  encoder: "A row shows which tokens the encoder looked at for the token at its left.",
};

/**
 * Return {node, update} of the attention of the given parts.
 *
 * `update` takes {weights, tokens, chosen, edits}: for each part the weights {data, shape}, the tokens {rows, columns}
 * and the chosen row or null. `onRow(part, row)` and `onEdit()` are called after a choice and after a switch, `onPart(part)`
 * when a part is drawn.
 */
export function attentionPanel({ parts, onRow, onEdit, onPart = () => {} }) {
  const shown = Object.fromEntries(parts.map((part) => [part, { layer: 0, head: 0 }]));
  let part = parts[0], state = null, isFirst = true;
  const tabs = element("div", { class: "tabs", role: "group", "aria-label": "Type of attention" });
  const hint = element("p", { class: "hint" }), tiles = element("div"), title = element("h3"), box = element("div"), effect = element("p", { class: "hint" });
  // These buttons are never replaced: a click that is under way when results are drawn would be lost.
  const switches = [control("switch head", "toggleHead"), control("switch layer", "toggleLayer")];
  const large = element("div", { class: "large" }, title, element("div", { class: "switches" }, ...switches), effect, box);
  const node = element("div", {}, ...(parts.length > 1 ? [tabs] : []), hint, element("div", { class: "attention" }, tiles, large));

  for (const one of parts) {
    const name = PARTS[one][0].toUpperCase() + PARTS[one].slice(1);
    tabs.append(element("button", { type: "button", "data-part": one, onclick: () => { part = one; draw(); } }, name));
  }

  function update(next) {
    state = next;
    if (isFirst && state.weights?.cross) {
      shown.cross.layer = state.weights.cross.shape[0] - 1; // the last layer is the easiest to read
      isFirst = false;
    }
    draw();
  }

  function draw() {
    const { edits } = state, weights = state.weights?.[part];
    onPart(part);
    for (const tab of tabs.children) tab.setAttribute("aria-pressed", String(tab.dataset.part === part));
    const long = weights && Math.max(weights.shape[2], weights.shape[3]) > MAX_TOKENS;
    hint.textContent = EXPLANATIONS[part] + (long ? ` The first ${MAX_TOKENS} tokens are shown.` : "");
    if (!weights?.data.length) {
      tiles.replaceChildren();
      large.hidden = true;
      return;
    }
    const selected = shown[part], row = state.chosen[part] ?? null, isOff = (layer, head) => edits.isHeadOff(part, layer, head) || edits.isLayerOff(part, layer);
    const onSelect = (layer, head) => {
      Object.assign(selected, { layer, head });
      draw();
    };
    redraw(tiles, headTiles({ weights, row, selected, isOff, onSelect }));
    drawHead(weights, selected, row);
  }

  function control(key, toggle) {
    const onclick = () => {
      state.edits[toggle](part, shown[part].layer, shown[part].head);
      onEdit();
    };
    return element("button", { type: "button", class: "switch", role: "switch", "data-key": key, onclick });
  }

  function drawHead(weights, { layer, head }, row) {
    const { edits } = state, { rows, columns } = state.tokens[part], map = headOf(weights, layer, head);
    const off = edits.isHeadOff(part, layer, head), layerOff = edits.isLayerOff(part, layer);
    const stack = part === "encoder" ? "encoder" : "decoder";
    const isLater = (one, other) => part === "decoder" && other > one, isHidden = (other) => part !== "decoder" && edits.masked.has(other);
    const isMasked = (one, other) => isLater(one, other) || isHidden(other);
    const describe = (one, other, weight) => {
      if (isLater(one, other)) return `${quoted(rows[one])} may not look at ${quoted(columns[other])}: it comes later`;
      return isHidden(other) ? `${quoted(columns[other])} is masked` : `${quoted(rows[one])} looked at ${quoted(columns[other])}: ${weight.toFixed(3)}`;
    };
    effect.textContent = layerOff ? "This layer is off: it passes on its input unchanged. The weights are those that it would have." : off ? "This head is off: its result counts as 0. The weights are those that it would have." : "";
    large.hidden = false;
    title.textContent = `Layer ${layer + 1}, head ${head + 1}`;
    for (const [button, text, isOff] of [[switches[0], "This head", off], [switches[1], `The whole ${stack} layer ${layer + 1}`, layerOff]]) {
      if (button.textContent !== text) button.textContent = text;
      button.setAttribute("aria-checked", String(!isOff));
    }
    redraw(box, headMap({
      map, rows: rows.slice(0, map.rows), columns: columns.slice(0, map.columns), row, describe, isMasked, onRow: (one) => onRow(part, one),
      label: `Weights of ${PARTS[part]}, layer ${layer + 1}, head ${head + 1}${off || layerOff ? ", switched off" : ""}`,
    }));
  }

  return { node, update };
}
