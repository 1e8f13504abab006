// Greedy search and beam search for one sentence, as generation/greedy.py and generation/beam.py.
//
// A run has `source`, `prefix`, of which the last `given` tokens are part of the output, and `step(tokens, rows)`, which
// returns the logits of each target.
import { logSoftmax, topIndices } from "../arrays.js";
import { compileProcessors } from "./processors.js";

const EXCLUDED = -1e9; // added to the score of an excluded candidate

/**
 * Run a prefix of the target; return the logits of the token after it, and the log-probability of its given tokens.
 *
 * `rate(logits, ids)` returns the log-probabilities after `ids`, as the search changes them. Where the search excludes a
 * given token, that of the model counts.
 */
async function start(run, prefix, rate) {
  const first = run.prefix.length - run.given;
  let logits, total = 0;
  for (const [index, id] of prefix.entries()) {
    if (index >= first) total += logProbOf(id, logits[0], rate(logits[0], prefix.slice(0, index)));
    logits = await run.step([id], [0]);
  }
  return { logits, total };
}

const logProbOf = (id, logits, rated) => (rated[id] > EXCLUDED / 2 ? rated[id] : logSoftmax(logits)[id]);

/** Return the function `rate` of a greedy or of a beam search. */
function ratingOf(run, config) {
  const process = compileProcessors(config), isGreedy = config.beam_size === 1;
  return (logits, ids) => {
    const scores = isGreedy ? logits.slice() : logSoftmax(logits);
    process(scores, ids, run.source);
    return isGreedy ? logSoftmax(scores) : scores;
  };
}

/**
 * Return the hypotheses of a search, best first, and its steps.
 *
 * A hypothesis has `ids` and `logProbs` of its new tokens, `rows`, its row in each step of the run, and `score`, which
 * also counts the given tokens. A step has the `candidates` of the search, best first: {id, parent, logProb, score,
 * ended, kept}, where `parent` is an index of the kept candidates of the step before, and `kept` its own index among
 * those of this step. If the given tokens end the output, there is one hypothesis without new tokens, and no step.
 */
export async function search(run, config) {
  const rate = ratingOf(run, config);
  if (run.given && config.eos_ids.includes(run.prefix.at(-1))) return endedSearch(run, config, rate);
  return config.beam_size > 1 ? beamSearch(run, config, rate) : greedySearch(run, config, rate);
}

async function endedSearch(run, config, rate) {
  const before = run.prefix.slice(0, -1), { logits, total } = await start(run, before, rate), id = run.prefix.at(-1);
  const score = (total + logProbOf(id, logits[0], rate(logits[0], before))) / run.given ** config.length_penalty;
  return { hypotheses: [{ ids: [], logProbs: [], score, rows: [] }], steps: [] };
}

async function greedySearch(run, config, rate) {
  const ids = [...run.prefix], logProbs = [], steps = [];
  let { logits, total } = await start(run, run.prefix, rate), ended = false;
  while (!ended) {
    const scores = rate(logits[0], ids), [id] = topIndices(scores, 1), logProb = scores[id];
    ids.push(id);
    logProbs.push(logProb);
    ended = config.eos_ids.includes(id) || ids.length >= config.max_length;
    total += logProb;
    steps.push([{ id, parent: 0, logProb, score: total, ended, kept: ended ? null : 0 }]);
    if (!ended) logits = await run.step([id], [0]);
  }
  const score = total / (run.given + logProbs.length) ** config.length_penalty;
  return { hypotheses: [{ ids: ids.slice(run.prefix.length), logProbs, score, rows: logProbs.map(() => 0) }], steps };
}

async function beamSearch(run, config, rate) {
  const { beam_size: size, eos_ids: ends } = config, count = Math.max(2, 1 + ends.length) * size;
  const finished = [], steps = [];
  let { logits, total } = await start(run, run.prefix, rate), beams = [{ ids: [], logProbs: [], score: total, rows: [] }];
  for (let length = run.prefix.length; ; length++) {
    const isFull = length + 1 >= config.max_length, found = [];
    beams.forEach((beam, parent) => {
      const scores = rate(logits[parent], [...run.prefix, ...beam.ids]);
      for (const id of topIndices(scores, count)) found.push({ id, parent, logProb: scores[id], score: beam.score + scores[id] });
    });
    const scores = found.map((one) => one.score);
    const candidates = topIndices(scores, count).map((index) => found[index]);
    for (const candidate of candidates) Object.assign(candidate, { ended: isFull || ends.includes(candidate.id), kept: null });
    const extend = ({ id, parent, logProb, score }) => {
      const beam = beams[parent];
      return { ids: [...beam.ids, id], logProbs: [...beam.logProbs, logProb], score, rows: [...beam.rows, parent] };
    };
    for (const candidate of candidates.slice(0, size)) if (candidate.ended) addFinished(finished, extend(candidate), run.given, config);
    steps.push(candidates);
    if (isFull) break;
    // beams that ended, or that do not exist, follow those that go on
    const order = candidates.map(({ ended }, index) => candidates[index].score + (ended ? EXCLUDED : 0));
    const kept = topIndices(order, size).filter((index) => order[index] > EXCLUDED / 2).map((index) => candidates[index]);
    if (!kept.length) break;
    kept.forEach((candidate, index) => { candidate.kept = index; });
    beams = kept.map(extend);
    if (!canImprove(finished, beams[0], run, config)) break;
    logits = await run.step(kept.map(({ id }) => id), kept.map(({ parent }) => parent));
  }
  return { hypotheses: finished, steps };
}

/** Add a hypothesis that ended to the best ones. */
function addFinished(finished, hypothesis, given, config) {
  if (finished.length && hypothesis.score < EXCLUDED / 2) return;
  const score = hypothesis.score / (given + hypothesis.ids.length) ** config.length_penalty;
  if (finished.length === config.beam_size && score <= finished.at(-1).score) return;
  finished.push({ ...hypothesis, score });
  finished.sort((one, other) => other.score - one.score);
  finished.splice(config.beam_size);
}

/** Return whether a running hypothesis can still become one of the best. */
function canImprove(finished, beam, { prefix, given }, config) {
  if (finished.length < config.beam_size) return true;
  if (config.early_stopping === true) return false;
  const atAnyLength = config.early_stopping === "never" && config.length_penalty > 0;
  const length = given + (atAnyLength ? config.max_length - prefix.length : beam.ids.length);
  return beam.score / length ** config.length_penalty > finished.at(-1).score;
}
