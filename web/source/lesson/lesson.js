// The lesson: seven chapters about one sentence, with the numbers that the model computes from it.
import { element, graphemesOf } from "@drawing/dom.js";
import { latest } from "../page/jobs.js";
import { openPage } from "../page/loading.js";
import { decoderChapter } from "./decoder.js";
import { embeddingChapter } from "./embedding.js";
import { headsChapter } from "./heads.js";
import { layerChapter } from "./layer.js";
import { queryChapter, workOut } from "./query.js";
import { searchChapter } from "./search.js";
import { isWord, tokensChapter } from "./tokens.js";

const byId = (id) => document.getElementById(id);
const MAX_CHARACTERS = 120, MAX_TOKENS = 32; // of the sentence: its tables stay readable
const MAX_UNITS = 4000; // UTF-16 units that are divided into characters: an emoji may consist of many
const MAX_OUTPUT = 40; // tokens of a target that are shown

class Lesson {
  constructor(model) {
    this.model = model;
    this.state = { token: 0, head: null, target: null, beams: 3 };
    const context = { model, choose: (change) => { Object.assign(this.state, change); this.draw(); }, search: (beams) => { this.state.beams = beams; this.update(); } };
    this.chapters = [tokensChapter, embeddingChapter, queryChapter, headsChapter, layerChapter, decoderChapter, searchChapter].map((chapter, index) => chapter(byId(`picture-${index + 1}`), context));
    this.update = latest((signal) => this.compute(signal), (isSlow) => { byId("progress").textContent = isSlow ? "Computing …" : ""; });
  }

  start() {
    fillConstants(this.model);
    byId("text").addEventListener("input", () => {
      if (!this.text && byId("text").value.trim()) byId("note").replaceChildren(); // it says to type a sentence
      this.update({ isTyping: true });
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    byId("lesson").hidden = false;
    return this.update();
  }

  async compute(signal) {
    const { model, state } = this, given = byId("text").value.replace(/\s+/g, " ").trim();
    const { text, inspected } = await this.shorten(given, signal);
    const best = await model.translate(text, { numBeams: state.beams, signal });
    const greedy = state.beams === 1 ? best : await model.translate(text, { numBeams: 1, signal });
    if (signal.aborted) return;
    const isNew = this.text !== text;
    Object.assign(this, { text });
    Object.assign(state, { ...inspected, text, best: firstTokens(best), greedy });
    if (isNew) Object.assign(state, { token: longestWord(inspected.source.tokens), target: null });
    state.head ??= broadestHead(state);
    state.target = Math.max(0, Math.min(state.target ?? longestWord(state.best.tokens), state.best.tokens.length - 1));
    byId("output").replaceChildren(best.text);
    byId("note").replaceChildren(...(text !== given ? ["The lesson uses the beginning of your text: ", element("bdi", {}, `“${text}”`)] : text ? [] : ["Type a sentence to see its numbers."]));
    for (const section of document.querySelectorAll(".chapter .picture")) section.hidden = !text;
    if (text) this.draw();
  }

  /** Return the beginning of a text that has at most MAX_TOKENS tokens, with its tokens and hidden states. */
  async shorten(given, signal) {
    let characters = cutOf(graphemesOf(given.slice(0, MAX_UNITS)), MAX_CHARACTERS);
    for (;;) {
      const text = characters.join("").trim(), inspected = await this.model.inspect(text, { signal }), { length } = inspected.source.ids;
      if (length <= MAX_TOKENS || characters.length < 2) return { text, inspected };
      characters = cutOf(characters, Math.max(1, Math.floor((characters.length * MAX_TOKENS) / length)));
    }
  }

  draw() {
    for (const chapter of this.chapters) chapter.update(this.state);
  }
}

/** Return the first characters of a text up to a number, and up to the end of a word if there is one. */
function cutOf(characters, limit) {
  const cut = characters.slice(0, limit), space = cut.lastIndexOf(" ");
  return characters.length > limit && characters[limit] !== " " && space > 0 ? cut.slice(0, space) : cut;
}

/** Return the head of the first layer whose largest weight for the token is smallest: one that has more than a single weight to show. */
function broadestHead(state) {
  const { shape } = state.encoder.queries, largest = Array.from({ length: shape[1] }, (_, head) => Math.max(...workOut(state, head, state.token).weights));
  return largest.indexOf(Math.min(...largest));
}

/** Return the index of the longest token that is a word: a good first choice. */
function longestWord(tokens) {
  const lengths = tokens.map((token) => (isWord(token) ? token.length : 0));
  return Math.max(0, lengths.indexOf(Math.max(...lengths)));
}

/** Return a translation of which at most MAX_OUTPUT tokens are shown. */
function firstTokens(result) {
  return { ...result, tokens: result.tokens.slice(0, MAX_OUTPUT), ids: result.ids.slice(0, MAX_OUTPUT) };
}

/** Fill in the sizes of the model, and link the names of the functions that compute a chapter to their lines. */
function fillConstants({ sizes, generation, lesson, repository }) {
  const width = lesson.norm.gamma.length, { heads, layers } = sizes.encoder;
  const ACTIVATIONS = { relu: "ReLU", gelu: "GELU", gelu_tanh: "GELU", silu: "SiLU" };
  const constants = {
    vocabulary: sizes.vocabulary.toLocaleString("en"), width, heads, layers, head: width / heads, inner: lesson.inner.toLocaleString("en"), decoder: sizes.decoder.layers,
    root: Math.sqrt(width / heads).toPrecision(3).replace(/\.?0+$/, ""), scale: Math.sqrt(width).toPrecision(3).replace(/\.?0+$/, ""), activation: ACTIVATIONS[lesson.activation] ?? lesson.activation,
    penalty: generation.length_penalty,
  };
  for (const node of document.querySelectorAll("[data-fill]")) node.textContent = constants[node.dataset.fill];
  for (const name of ["positions", "merges", "bias"]) {
    for (const node of document.querySelectorAll(`[data-${name}]`)) {
      if (node.dataset[name] !== String(lesson[name])) node.remove();
      else node.hidden = false;
    }
  }
  if (!repository) return;
  for (const node of document.querySelectorAll("[data-code]")) {
    node.replaceChildren(element("a", { href: `${repository}/blob/main/${node.dataset.code}` }, ...node.childNodes));
  }
}

openPage((model) => new Lesson(model).start());
