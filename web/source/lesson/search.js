// Chapter 7: greedy search and beam search, step by step, with the sums of log-probabilities.
import { drawBeams } from "@drawing/beams.js";
import { digits, display, element, plural } from "@drawing/dom.js";
import { treeOf } from "../page/beams.js";
import { choices } from "./choices.js";
import { numberCell, scrolling, show } from "./numbers.js";
import { stepper } from "./stepper.js";

const MAX_STEPS = 30, MAX_BEAMS = 5;

/** Return {update} of the picture of a search in a box. */
export function searchChapter(box, { model, search }) {
  const stage = element("div", { class: "stage wide" }), pick = choices("Beams", (index) => search(index + 1)), steps = stepper(box, "search");
  box.prepend(pick.node);
  box.append(stage);

  function update({ best, greedy, beams }) {
    pick.update(Array.from({ length: MAX_BEAMS }, (_, index) => String(index + 1)), beams - 1);
    const count = Math.min(best.beams.length, MAX_STEPS), beginnings = beginningsOf(best.beams);
    stage.style.minHeight = "";
    const draw = (step, isEnd) => {
      const tree = element("div", { class: "tree" }), short = { ...best, beams: best.beams.slice(0, step + 1) };
      const legend = element("p", { class: "hint" }, "Tree: a column is a step, and a box is a beam with its sum. A rounded box is the end of one of the best outputs, with its rank; other ends are not drawn.");
      stage.replaceChildren(candidateTable(best.beams[step], beginnings[step], step, beams), legend, tree, ...(isEnd ? [outputTable(best, greedy, model.generation.length_penalty, beams)] : []));
      const { columns, ends } = treeOf([], short);
      if (columns.length + ends.length) drawBeams(tree, { start: "start", columns: isEnd ? columns : columns.map((column) => column.map((node) => ({ ...node, best: false }))), ends });
      stage.style.minHeight = `${stage.offsetHeight}px`; // a lower picture would move the buttons at the end of the page
    };
    const vocabulary = model.sizes.vocabulary.toLocaleString("en");
    steps.update([
      { frames: count, caption: (frame) => stepCaption(best.beams[frame], frame, beams, vocabulary), show: (frame) => draw(frame, false) },
      { caption: () => endCaption(best, greedy, beams), show: () => draw(count - 1, true) },
    ]);
  }
  return { update };
}

function stepCaption(candidates, frame, beams, vocabulary) {
  const kept = candidates.filter((one) => one.kept !== null).length, ended = candidates.slice(0, beams).filter((one) => one.ended).length;
  const end = ended ? ` ${plural(ended, "output")} ended here${kept ? ", so the next best candidates take the free places" : ""}.` : "";
  if (beams === 1) return `Step ${frame + 1}: greedy search takes the most probable of ${vocabulary} tokens.${end}`;
  return `Step ${frame + 1}: every beam is continued with each of ${vocabulary} tokens, and the log-probability of the token is added to the sum of the beam. The best ${kept || beams} sums stay.${end}`;
}

function endCaption(best, greedy, beams) {
  const same = best.ids.join() === greedy.ids.join();
  if (beams === 1) return "The output ends with </s>. Greedy search never looks back: choose 3 beams to compare.";
  return `The outputs that ended are compared. ${same ? "Here, greedy search finds the same output as the beams." : "Here, greedy search finds another output than the beams."}`;
}

/** Return for each step the texts of the beams that it continues. */
function beginningsOf(steps) {
  let kept = ["start"];
  return steps.map((candidates) => {
    const before = kept;
    kept = candidates.filter((one) => one.kept !== null).sort((one, other) => one.kept - other.kept).map(({ parent, token }) => (before[parent] === "start" ? display(token) : `${before[parent]}${token.startsWith("▁") ? " " : ""}${display(token)}`));
    return before;
  });
}

function candidateTable(candidates, beginnings, step, beams) {
  const lastKept = candidates.findLastIndex((one) => one.kept !== null), totals = candidates.slice(0, Math.max(beams + 2, lastKept + 1));
  const rows = totals.map(({ token, parent, logProb, score, kept, ended }, rank) => {
    const isEnd = ended && rank < beams, verdict = isEnd ? "ends" : kept !== null ? "stays" : "dropped";
    return element("tr", { class: verdict === "dropped" ? "faded" : "" }, element("td", { class: "text" }, element("bdi", {}, beginnings[parent] ?? "")), element("th", { scope: "row" }, element("bdi", {}, display(token))),
      numberCell(Math.exp(logProb), { text: digits(Math.exp(logProb)).replace("e-", "e−") }), numberCell(score - logProb, { decimals: 2 }), numberCell(logProb, { decimals: 2 }), numberCell(score, { decimals: 2, className: "sum" }), element("td", { class: "verdict" }, verdict));
  });
  const names = ["beam", "next token", "P", "sum before", "log P", "new sum", ""];
  return scrolling(`Candidates of step ${step + 1}`, element("table", { class: "numbers candidates" }, element("caption", {}, `Step ${step + 1}: the best candidates`), element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))), element("tbody", {}, ...rows)));
}

function outputTable(best, greedy, penalty, beams) {
  const sumOf = (one) => one.logProbs.reduce((sum, value) => sum + value, 0);
  const line = (one, name) => element("tr", {}, element("th", { scope: "row" }, name), element("td", { class: "text" }, element("bdi", {}, one.text)), numberCell(sumOf(one), { decimals: 3 }), element("td", { class: "number" }, String(one.ids.length)), numberCell(one.score, { decimals: 3, className: "sum" }));
  const rows = best.hypotheses.map((one, rank) => line(one, String(rank + 1)));
  if (beams > 1) rows.push(line(greedy, "greedy"));
  const names = ["rank", "output", "log P", "tokens L", penalty === 1 ? "score = log P ÷ L" : `score = log P ÷ L^${show(penalty, 1)}`];
  return scrolling("Outputs", element("table", { class: "numbers outputs" }, element("caption", {}, "Outputs that ended, best first"), element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))), element("tbody", {}, ...rows)));
}
