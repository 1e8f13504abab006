// Chapter 1: a text becomes words, characters, merged tokens, and ids.
import { element, plural } from "@drawing/dom.js";
import { BYTE } from "../page/token_notes.js";
import { stepper } from "./stepper.js";

/** Return whether a token consists of letters only, after the mark of a word's start. */
export const isWord = (token) => /^▁?\p{L}+$/u.test(token);

/** Return {update} of the picture of tokens in a box. */
export function tokensChapter(box) {
  const stage = element("div", { class: "stage" }), steps = stepper(box, "tokens");
  box.append(stage);

  function update({ text, words, source }) {
    const rounds = Math.max(...words.map((word) => word.steps.length - 1)), hasMerges = rounds > 0;
    const after = (round) => words.map(({ steps: list }) => list[Math.min(round, list.length - 1)]);
    const changed = (round) => words.map(({ steps: list }) => changedToken(list[round - 1], list[round]));
    const count = after(rounds).flat().length, end = source.tokens.slice(count), lines = [
      line("text", element("p", { class: "big" }, element("bdi", {}, text))),
      line("parts", piecesOf(words.map(({ word }) => [word]))),
      line("characters", piecesOf(after(0))),
    ];
    const merging = (round) => line(`characters, after ${plural(round, "round")} of merging`, piecesOf(after(round), { marked: changed(round) }));
    const tokens = (ids) => line(ids ? "tokens and their ids" : "tokens", piecesOf(ids && end.length ? [...after(rounds), end] : after(rounds), { ids }));
    const show = (...shown) => () => stage.replaceChildren(...shown.filter(Boolean));
    const [whole, parts, characters] = lines, before = hasMerges ? characters : null;
    const all = [
      { caption: () => "This is your text.", show: show(whole) },
      { caption: () => `The text is cut into ${plural(words.length, "part")}: words, numbers and signs. The mark ▁ at the start of a part is the space before it; the first word gets one too.`, show: show(whole, parts) },
      hasMerges && { caption: () => `Each part starts as single characters.${after(0).flat().some((token) => BYTE.test(token)) ? " A character that the vocabulary lacks starts as its bytes, such as <0xF0>." : ""}`, show: show(whole, parts, characters) },
      hasMerges && {
        frames: rounds,
        caption: (frame) => `Round ${frame + 1}: in each part, the pair of neighbors that was learned earliest is merged into one token. Parts without a known pair are finished.`,
        show: (frame) => show(whole, parts, merging(frame + 1))(),
      },
      { caption: () => `No pair is left to merge. The ${plural(count, "piece")} are the tokens of your text.`, show: show(whole, parts, before, tokens(null)) },
      {
        caption: () => `Each token has a number in the vocabulary: its id.${end.length ? ` The token ${end.at(-1)}, with the id ${source.ids.at(-1)}, marks the end of the text.` : ""} The model receives these ${plural(source.ids.length, "id")}, and nothing else.`,
        show: show(whole, parts, before, tokens(source.ids)),
      },
    ];
    steps.update(all.filter(Boolean));
  }
  return { update };
}

/** Return the index of the token that a merge made, or −1. */
function changedToken(before, after) {
  return before && after ? after.findIndex((token, index) => token !== before[index]) : -1;
}

const line = (name, content) => element("div", { class: "line" }, element("span", {}, name), content);

function piecesOf(groups, { marked = [], ids = null } = {}) {
  let index = 0;
  return element("ol", { class: "words", "aria-label": "Parts of the text" }, ...groups.map((tokens, group) => element("li", {}, ...tokens.map((token, place) => {
    const number = ids ? [element("small", { "data-id": ids[index] }, String(ids[index]))] : [];
    index++;
    const title = BYTE.test(token) ? "a byte of a character that the vocabulary does not have" : undefined;
    return element("span", { class: `piece${marked[group] === place ? " new" : ""}`, title }, element("bdi", {}, token), ...number);
  }))));
}
