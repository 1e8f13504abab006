// Chapter 1: a text becomes words, characters, merged tokens, and ids.
import { display, element, plural } from "@drawing/dom.js";
import { stepper } from "./stepper.js";

const BYTE = /^<0x[0-9A-F]{2}>$/;
const lower = (text) => text.replaceAll("▁", "_");

/** Return {update} of the picture of tokens in a box. */
export function tokensChapter(box) {
  const stage = element("div", { class: "stage" }), steps = stepper(box, "tokens");
  box.append(stage);

  function update({ text, words, source }) {
    const rounds = Math.max(...words.map((word) => word.steps.length - 1)), hasMerges = rounds > 0;
    const wordTokens = words.reduce((sum, word) => sum + word.steps.at(-1).length, 0), extra = source.tokens.slice(wordTokens), lastId = source.ids.at(-1);
    const merged = (frame) => words.map(({ steps: list }) => list[Math.min(frame, list.length - 1)]);
    const changed = (frame) => words.map(({ steps: list }) => changedToken(list[frame - 1], list[frame]));
    const show = (groups, options = {}) => stage.replaceChildren(wordsLine(groups, options));
    const ids = source.ids.slice();
    const all = [
      { caption: () => "This is your text.", show: () => stage.replaceChildren(element("p", { class: "big" }, element("bdi", {}, text))) },
      {
        caption: () => `The text is cut into ${plural(words.length, "part")}: words, numbers and signs. The mark ▁ at the start of a part is the space before it.`,
        show: () => show(words.map(({ word }) => [word])),
      },
      hasMerges && { caption: () => "Each word starts as its single characters.", show: () => show(merged(0)) },
      hasMerges && {
        frames: rounds,
        caption: (frame) => `In each word, the pair of neighbors that was learned first is merged into one token (round ${frame + 1}). Words without such a pair are finished.`,
        show: (frame) => show(merged(frame + 1), { marked: changed(frame + 1) }),
      },
      { caption: () => `Nothing more can be merged. These ${wordTokens} pieces are the tokens of your text.`, show: () => show(merged(rounds)) },
      {
        caption: () => [`Each token has a number in the vocabulary: its id.${extra.length ? ` The token ${extra.at(-1)}, with the id ${lastId}, marks the end of the text. The model now has ${source.ids.length} ids.` : ""}`],
        show: () => show([...merged(rounds), ...(extra.length ? [extra] : [])], { ids }),
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

function wordsLine(groups, { marked = [], ids = null } = {}) {
  let index = 0;
  return element("ol", { class: "words", "aria-label": "Words with their tokens" }, ...groups.map((tokens, group) => element("li", {}, ...tokens.map((token, place) => {
    const number = ids ? [element("small", { "data-id": ids[index] }, String(ids[index]))] : [];
    index++;
    const name = BYTE.test(token) || token.startsWith("<") ? token : token === "▁" ? "▁" : token;
    return element("span", { class: `piece${marked[group] === place ? " new" : ""}`, title: BYTE.test(token) ? "a byte of a character that the vocabulary does not have" : lower(display(token)) }, element("bdi", {}, name), ...number);
  }))));
}
