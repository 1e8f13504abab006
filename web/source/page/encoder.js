// The page of a text encoder: the vectors of sentences, their cosines, and the attention of one sentence.
import { shade } from "@drawing/cells.js";
import { display, element, quoted } from "@drawing/dom.js";
import { addArrowKeys, redraw } from "@drawing/keys.js";
import { matrixTable } from "@drawing/matrix.js";
import { attentionPanel } from "./attention.js";
import { showChanges } from "./changes.js";
import { Edits } from "./edits.js";
import { latest } from "./jobs.js";
import { MAX_CHIPS, tokenNotes } from "./token_notes.js";

const byId = (id) => document.getElementById(id);
const MAX_TEXTS = 20, MAX_NAME = 44;

const short = (text) => (text.length > MAX_NAME ? `${text.slice(0, MAX_NAME - 1)}…` : text);

/** Show a text encoder; resolves when the first sentences are encoded. */
export function showEncoder(model) {
  return new EncoderPage(model).start();
}

class EncoderPage {
  constructor(model) {
    this.model = model;
    this.edits = new Edits();
    this.chosen = 0; // sentence
    this.row = null; // token
    this.result = null;
    this.attention = attentionPanel({ parts: ["encoder"], onEdit: () => this.change(), onRow: (_, row) => {
      this.row = this.row === row ? null : row;
      this.drawText();
    } });
    this.update = latest((signal) => this.encode(signal), (isSlow) => { byId("texts-progress").textContent = isSlow ? "Encoding …" : ""; });
  }

  start() {
    byId("text-attention").append(this.attention.node);
    byId("texts").addEventListener("input", () => {
      this.edits.forgetText();
      this.update({ isTyping: true });
    });
    byId("reset").addEventListener("click", () => {
      this.edits.reset();
      byId("texts").focus();
      this.change();
    });
    addArrowKeys(byId("text-tokens"), (chip, key) => {
      const item = chip.closest("li");
      return { ArrowRight: item.nextSibling, ArrowLeft: item.previousSibling }[key]?.firstChild ?? null;
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    byId("encoder").hidden = false;
    return this.update();
  }

  /** Show a change by hand at once, and then its results. */
  change() {
    this.drawChanges();
    if (this.result?.texts.length) this.drawText();
    this.update();
  }

  async encode(signal) {
    const { value } = byId("texts"), lines = value.split("\n").filter((line) => line.trim()), texts = lines.slice(0, MAX_TEXTS);
    this.chosen = Math.max(0, Math.min(this.chosen, texts.length - 1));
    const { maskedSource, ...switches } = this.edits.switches();
    const result = await this.model.encode(texts, { signal, ...switches, maskedSource: texts.map((_, index) => (index === this.chosen ? maskedSource : [])) });
    if (signal.aborted) return;
    Object.assign(this, { result, value, isCut: lines.length > MAX_TEXTS, chosen: Math.max(0, Math.min(this.chosen, texts.length - 1)) });
    this.draw();
  }

  choose(index) {
    const isMasked = this.edits.masked.size > 0;
    this.edits.masked.clear(); // they are tokens of the other sentence
    Object.assign(this, { chosen: index, row: null });
    if (isMasked) this.update();
    else this.draw();
  }

  draw() {
    const { texts, cosines } = this.result, { changesModel } = this.edits;
    const notes = [!texts.length && "Type a sentence.", this.isCut && `The first ${MAX_TEXTS} sentences are shown.`, texts.some(({ truncated }) => truncated) && "A sentence is longer than the model takes: its end was cut."];
    byId("texts-note").textContent = notes.filter(Boolean).join(" ");
    for (const section of document.querySelectorAll("#encoder section")) section.hidden = !texts.length;
    this.drawChanges();
    byId("vectors").classList.toggle("by-hand", changesModel);
    byId("cosines").classList.toggle("by-hand", changesModel);
    if (!texts.length) return;
    redraw(byId("vectors"), ...texts.map((text, index) => this.vectorOf(text, index)));
    byId("cosines").replaceChildren(matrixTable(cosines, "Cosine of each pair of vectors").table);
    this.drawText();
  }

  drawChanges() {
    showChanges(this.edits, () => this.change());
    if (this.result?.texts.length === 0) byId("changes").hidden = true; // nothing is shown that they change
  }

  /** Return the button of a sentence, with its vector as a strip of cells. */
  vectorOf({ text, vector }, index) {
    const strip = element("canvas", { "aria-hidden": "true" }), largest = vector.reduce((most, one) => Math.max(most, Math.abs(one)), 1e-30);
    shade(strip, 1, vector.length, (at) => vector[at] / largest);
    const attributes = { type: "button", "data-key": `text ${index}`, "aria-pressed": String(index === this.chosen), onclick: () => this.choose(index) };
    return element("li", {}, element("button", attributes, element("bdi", {}, `${index + 1}  ${short(text)}`), strip));
  }

  drawText() {
    const { edits, row } = this, { tokens, encoder } = this.result.texts[this.chosen];
    byId("text-title").textContent = `Attention of sentence ${this.chosen + 1}`;
    redraw(byId("text-tokens"), ...tokens.slice(0, MAX_CHIPS).map((token, index) => {
      const isMasked = edits.masked.has(index), attributes = { type: "button", class: isMasked ? "masked" : "", "aria-pressed": String(isMasked), "data-key": `source ${index}`, tabindex: index ? "-1" : "0", title: `Mask ${token}`, "aria-label": `Mask ${quoted(token)}` };
      const onclick = () => {
        if (this.value !== byId("texts").value) return; // the tokens are those of another text
        edits.toggleSource(index, display(token));
        this.change();
      };
      return element("li", {}, element("button", { ...attributes, onclick }, element("bdi", {}, display(token))));
    }));
    byId("text-tokens-note").textContent = tokenNotes({ "": tokens });
    this.attention.update({ weights: { encoder: encoder.attention }, tokens: { encoder: { rows: tokens, columns: tokens } }, chosen: { encoder: row }, edits });
  }
}
