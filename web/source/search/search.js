// Greedy search and beam search for one sentence, as generation/greedy.py and generation/beam.py.
//
// A run has `source`, `prefix`, and `step(tokens, rows)`, which returns the logits of each target.
import { logSoftmax, topIndices } from "../arrays.js";
import { compileProcessors } from "./processors.js";

const EXCLUDED = -1e9; // added to the score of an excluded candidate

/** Run the prefix of the target, whose logits are those of the first new token. */
async function start(run) {
  let logits;
  for (const id of run.prefix) logits = await run.step([id], [0]);
  return logits;
}

/**
 * Return the hypotheses of a search, best first, and its steps.
 *
 * A hypothesis has `ids` and `logProbs` of its new tokens, `score`, and `rows`: its row in each step of the run. A step
 * has the `candidates` of the search, best first: {id, parent, logProb, score, ended, kept}, where `parent` is an index
 * of the kept candidates of the step before, and `kept` its own index among those of this step.
 */
export async function search(run, config) {
  return config.beam_size > 1 ? beamSearch(run, config) : greedySearch(run, config);
}

async function greedySearch(run, config) {
  const process = compileProcessors(config), ids = [...run.prefix], logProbs = [], steps = [];
  let logits = await start(run), ended = false;
  while (!ended) {
    const scores = logits[0].slice();
    process(scores, ids, run.source);
    const [id] = topIndices(scores, 1), logProb = logSoftmax(scores)[id];
    ids.push(id);
    logProbs.push(logProb);
    ended = config.eos_ids.includes(id) || ids.length >= config.max_length;
    const total = logProbs.reduce((sum, one) => sum + one, 0);
    steps.push([{ id, parent: 0, logProb, score: total, ended, kept: ended ? null : 0 }]);
    if (!ended) logits = await run.step([id], [0]);
  }
  const score = logProbs.reduce((sum, one) => sum + one, 0) / logProbs.length ** config.length_penalty;
  return { hypotheses: [{ ids: ids.slice(run.prefix.length), logProbs, score, rows: logProbs.map(() => 0) }], steps };
}

async function beamSearch(run, config) {
  const { beam_size: size, eos_ids: ends } = config, count = Math.max(2, 1 + ends.length) * size;
  const process = compileProcessors(config), finished = [], steps = [];
  let logits = await start(run), beams = [{ ids: [], logProbs: [], score: 0, rows: [] }];
  for (let length = run.prefix.length; ; length++) {
    const isFull = length + 1 >= config.max_length, found = [];
    beams.forEach((beam, parent) => {
      const scores = logSoftmax(logits[parent]);
      process(scores, [...run.prefix, ...beam.ids], run.source);
      for (const id of topIndices(scores, count)) found.push({ id, parent, logProb: scores[id], score: beam.score + scores[id] });
    });
    const scores = found.map((one) => one.score);
    const candidates = topIndices(scores, count).map((index) => found[index]);
    for (const candidate of candidates) Object.assign(candidate, { ended: isFull || ends.includes(candidate.id), kept: null });
    const extend = ({ id, parent, logProb, score }) => {
      const beam = beams[parent];
      return { ids: [...beam.ids, id], logProbs: [...beam.logProbs, logProb], score, rows: [...beam.rows, parent] };
    };
    for (const candidate of candidates.slice(0, size)) if (candidate.ended) addFinished(finished, extend(candidate), config);
    steps.push(candidates);
    if (isFull) break;
    // beams that ended, or that do not exist, follow those that go on
    const order = candidates.map(({ ended }, index) => candidates[index].score + (ended ? EXCLUDED : 0));
    const kept = topIndices(order, size).filter((index) => order[index] > EXCLUDED / 2).map((index) => candidates[index]);
    if (!kept.length) break;
    kept.forEach((candidate, index) => { candidate.kept = index; });
    beams = kept.map(extend);
    if (!canImprove(finished, beams[0], config, run.prefix.length)) break;
    logits = await run.step(kept.map(({ id }) => id), kept.map(({ parent }) => parent));
  }
  return { hypotheses: finished, steps };
}

/** Add a hypothesis that ended to the best ones. */
function addFinished(finished, hypothesis, config) {
  if (finished.length && hypothesis.score < EXCLUDED / 2) return;
  const score = hypothesis.score / hypothesis.ids.length ** config.length_penalty;
  if (finished.length === config.beam_size && score <= finished.at(-1).score) return;
  finished.push({ ...hypothesis, score });
  finished.sort((one, other) => other.score - one.score);
  finished.splice(config.beam_size);
}

/** Return whether a running hypothesis can still become one of the best. */
function canImprove(finished, beam, config, prefixLength) {
  if (finished.length < config.beam_size) return true;
  if (config.early_stopping === true) return false;
  const atAnyLength = config.early_stopping === "never" && config.length_penalty > 0;
  const length = atAnyLength ? config.max_length - prefixLength : beam.ids.length;
  return beam.score / length ** config.length_penalty > finished.at(-1).score;
}
