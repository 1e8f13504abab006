// The page of a translator: the translation of a text, and pictures of how the model comes to it.
import { probabilityBars } from "@drawing/bars.js";
import { display, element, fixed, quoted } from "@drawing/dom.js";
import { meanOfHeads } from "@drawing/heads.js";
import { redraw } from "@drawing/keys.js";
import { tokenLines } from "@drawing/token_lines.js";
import { attentionPanel } from "./attention.js";
import { showTree } from "./beams.js";
import { markedWords, showChanges } from "./changes.js";
import { Edits, textOf } from "./edits.js";
import { latest } from "./jobs.js";
import { MAX_CHIPS, tokenNotes } from "./token_notes.js";

const byId = (id) => document.getElementById(id);

/** Show a translator; resolves when the first text is translated. */
export function showTranslator(model) {
  return new TranslatorPage(model).start();
}

class TranslatorPage {
  constructor(model) {
    this.model = model;
    this.edits = new Edits();
    this.chosen = null; // target token
    this.next = null; // that of the result that is being computed, if it is another one
    this.encoderRow = null;
    this.result = this.own = null; // of the model as it is changed, and as it is
    this.lines = tokenLines({ onSource: (index) => this.maskSource(index), onTarget: (index) => this.choose(index) });
    this.attention = attentionPanel({ parts: ["cross", "decoder", "encoder"], onRow: (part, row) => this.chooseRow(part, row), onEdit: () => this.change(), onPart: (part) => this.drawTitle(part) });
    const onSlow = (isSlow) => { byId("progress").textContent = isSlow ? "Translating …" : ""; };
    this.update = latest((signal) => this.translate(signal), onSlow);
    this.showNext = latest((signal) => this.drawNext(signal));
  }

  start() {
    byId("token-lines").append(this.lines.node);
    byId("attention").append(this.attention.node);
    byId("text").addEventListener("input", () => {
      this.edits.forgetText();
      this.encoderRow = this.next = null;
      this.update({ isTyping: true });
    });
    byId("beams").addEventListener("change", () => this.update());
    byId("reset").addEventListener("click", () => {
      this.edits.reset();
      byId("text").focus();
      this.change();
    });
    byId("temperature").addEventListener("input", () => {
      this.edits.temperature = Number(byId("temperature").value);
      this.drawChanges();
      this.showNext();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    byId("translator").hidden = false;
    return this.update();
  }

  /** Show a change by hand at once, and then its results. */
  change() {
    this.drawChanges();
    if (this.result) {
      this.drawTokens();
      this.drawAttention();
    }
    this.update();
  }

  async translate(signal) {
    const { edits } = this, text = byId("text").value, numBeams = Number(byId("beams").value), key = JSON.stringify([text, numBeams]);
    const result = await this.model.translate(text, { numBeams, signal, ...edits.options() });
    let own = this.own;
    if (!edits.changesModel) own = { key, ...result };
    else if (own?.key !== key) own = { key, ...(await this.model.translate(text, { numBeams, signal })) };
    if (signal.aborted) return;
    Object.assign(this, { result, own, text });
    const { length } = result.tokens; // at first, the last word, which is in front of a full stop and the end
    this.chosen = length ? Math.min(this.next ?? this.chosen ?? Math.max(0, length - 3), length - 1) : null;
    this.next = null;
    this.draw();
    await this.showNext();
  }

  get isEmpty() {
    return this.result?.tokens.length === 0;
  }

  /** Choose a target token. */
  choose(index) {
    Object.assign(this, { chosen: index, next: null });
    this.drawTokens();
    this.drawAttention();
    this.showNext();
  }

  chooseRow(part, row) {
    if (part !== "encoder") this.choose(row);
    else {
      this.encoderRow = this.encoderRow === row ? null : row;
      this.drawAttention();
    }
  }

  /** Whether the text was changed after the result that is shown: its tokens are not those of the text. */
  get isStale() {
    return byId("text").value !== this.text;
  }

  maskSource(index) {
    if (this.isStale) return;
    this.edits.toggleSource(index, display(this.result.source.tokens[index]));
    this.change();
  }

  /** Continue the search after tokens that are chosen by hand. */
  continueAfter(tokens) {
    if (this.isStale) return;
    this.edits.prefix = tokens;
    this.next = tokens.length - 1;
    this.drawChanges();
    this.update();
  }

  draw() {
    const { result, own, edits } = this, isChanged = edits.changesModel && !this.isEmpty, isOther = isChanged && result.text !== own.text;
    byId("note").textContent = this.isEmpty ? "Type a sentence." : result.source.truncated ? "The text is longer than the model takes: its end was cut." : "";
    byId("output").replaceChildren(...(isOther ? markedWords(result.text, own.text) : [result.text]));
    byId("output").classList.toggle("by-hand", isChanged);
    byId("own").hidden = !isChanged;
    byId("own").replaceChildren(isOther ? "Changed by hand. The model’s own translation: " : "Changed by hand. The model’s own translation is the same.", ...(isOther ? [element("bdi", {}, own.text)] : []));
    for (const section of document.querySelectorAll("#pictures section")) section.hidden = !result.tokens.length;
    this.drawChanges();
    this.drawTokens();
    this.drawAttention();
    this.drawTree();
  }

  drawChanges() {
    const { edits } = this;
    showChanges(edits, () => this.change());
    if (this.isEmpty) byId("changes").hidden = true; // nothing is shown that they change
    byId("temperature").value = edits.temperature;
    byId("temperature-value").textContent = edits.temperature.toFixed(1);
  }

  drawTokens() {
    const { result, edits, chosen } = this, { attention, tokens, probabilities } = result, source = tokens.length ? result.source.tokens : [];
    const isOff = (layer, head) => edits.isHeadOff("cross", layer, head) || edits.isLayerOff("cross", layer);
    const weights = tokens.length ? meanOfHeads(attention.cross, chosen, isOff) : [];
    this.lines.update({
      source: source.slice(0, MAX_CHIPS).map((token, index) => ({ token, isMasked: edits.masked.has(index), action: "Mask" })),
      target: tokens.slice(0, MAX_CHIPS).map((token, index) => ({ token, probability: probabilities[index], byHand: index < edits.prefix.length })),
      weights,
      chosen,
    });
    byId("most").replaceChildren(...mostOf(weights, tokens[chosen], source));
    byId("token-note").textContent = tokenNotes({ source, target: tokens }, "You see what the model itself makes of them; clearhead translate copies such characters.");
  }

  drawAttention() {
    const { result, edits, chosen } = this, { tokens, source } = result;
    const inputs = ["start", ...tokens.slice(0, -1)];
    this.attention.update({
      weights: tokens.length ? { ...result.attention, decoder: result.attention.self } : null,
      tokens: { cross: { rows: tokens, columns: source.tokens }, decoder: { rows: tokens, columns: inputs }, encoder: { rows: source.tokens, columns: source.tokens } },
      chosen: { cross: chosen, decoder: chosen, encoder: this.encoderRow },
      edits,
    });
  }

  /** Draw the heading of the attention of a part: its chosen row. */
  drawTitle(part) {
    const { result, chosen, encoderRow } = this, isSource = part === "encoder", row = isSource ? encoderRow : chosen;
    const token = row === null ? null : (isSource ? result.source : result).tokens[row];
    byId("attention-title").textContent = token ? `What ${isSource ? "source token " : ""}${quoted(token)} looked at` : isSource ? "What the source tokens looked at" : "Attention";
  }

  drawTree() {
    const { result, edits } = this, names = new Map();
    for (const step of result.beams) for (const { id, token } of step) names.set(id, token);
    for (const { id, token } of edits.prefix) names.set(id, token);
    const onPick = (ids) => this.continueAfter(ids.map((id) => ({ id, token: names.get(id) })));
    showTree(byId("tree"), edits.prefix, result, onPick);
    byId("outputs").replaceChildren(...result.hypotheses.map(({ text, score }) => element("li", {}, element("bdi", {}, text), element("span", { class: "score" }, `score ${fixed(score, 3)}`))));
  }

  async drawNext(signal) {
    const { result, own, edits, chosen } = this;
    if (chosen === null) return;
    const isComparable = edits.changesModel && own.ids.slice(0, chosen).join() === result.ids.slice(0, chosen).join();
    const tokens = await this.distribution(result, edits.switches(), signal);
    const before = isComparable && (await this.distribution(own, {}, signal));
    if (signal.aborted) return;
    byId("before-note").hidden = !before;
    byId("next").classList.toggle("by-hand", edits.changesModel || edits.temperature !== 1);
    byId("next-after").replaceChildren(...(chosen ? ["After ", element("bdi", {}, `“${this.beginning()}”`)] : ["At the start of the output"]));
    const onPick = (token) => {
      if (token.id !== result.ids[chosen]) this.continueAfter([...this.tokensBefore(), token]);
    };
    const label = "Most probable next tokens; select one to continue with it";
    redraw(byId("bars"), probabilityBars({ tokens, chosen: result.ids[chosen], before: before ? new Map(before.map(({ id, probability }) => [id, probability])) : null, onPick, label }));
  }

  tokensBefore() {
    return this.result.ids.slice(0, this.chosen).map((id, index) => ({ id, token: this.result.tokens[index] }));
  }

  beginning() {
    return textOf(this.tokensBefore());
  }

  /** Return the most probable tokens at the chosen step of an output. */
  async distribution(output, switches, signal) {
    const { chosen, edits, text } = this;
    if (edits.temperature === 1 && output.alternatives[chosen]) return output.alternatives[chosen];
    return (await this.model.forward(text, output.ids.slice(0, chosen), { ...switches, temperature: edits.temperature, signal })).alternatives;
  }
}

/** Return the sentence, as nodes, about the source token that a target token looked at most. */
function mostOf(weights, token, source) {
  if (!weights.length) return [];
  const largest = Math.max(...weights), most = weights.indexOf(largest);
  if (!(largest > 0)) return ["Nothing of the source reaches the decoder: all of its tokens are masked, or all heads of cross-attention are off."];
  return [element("bdi", {}, quoted(token)), " looked most at ", element("b", {}, element("bdi", {}, quoted(source[most]))), `, with the weight ${fixed(largest, 2)}.`];
}
