// Logits processors: change the scores of the next token before it is chosen, as generation/logits_processors.py.

function forbidNgrams(scores, ids, source, size) {
  if (ids.length < size - 1) return;
  const begun = ids.slice(ids.length - size + 1);
  for (let start = 0; start + size <= source.length; start++) {
    if (begun.every((id, index) => source[start + index] === id)) scores[source[start + size - 1]] = -Infinity;
  }
}

function forceTokens(scores, allowed) {
  scores.fill(-Infinity);
  for (const id of allowed) scores[id] = 0;
}

function renormalize(scores) {
  let largest = -Infinity, total = 0;
  for (const score of scores) largest = Math.max(largest, score);
  for (const score of scores) total += Math.exp(score - largest);
  for (let index = 0; index < scores.length; index++) scores[index] -= largest + Math.log(total);
}

/**
 * Return the function (scores, ids, source) that applies the options of a generation config in place.
 *
 * `ids` is the target so far with its prefix, `source` the ids of the source. The scores are logits in a greedy search
 * and log-probabilities in a beam search.
 */
export function compileProcessors(config) {
  const { repetition_penalty: penalty, no_repeat_ngram_size: size, encoder_no_repeat_ngram_size: sourceSize } = config;
  const words = config.bad_words_ids.filter((word) => !(word.length === 1 && config.eos_ids.includes(word[0])));
  return (scores, ids, source) => {
    if (penalty !== 1) for (const id of new Set(ids)) scores[id] = scores[id] < 0 ? scores[id] * penalty : scores[id] / penalty;
    if (size) forbidNgrams(scores, ids, ids, size);
    if (sourceSize) forbidNgrams(scores, ids, source, sourceSize);
    for (const word of words) {
      const begun = word.slice(0, -1), from = ids.length - begun.length;
      if (from >= 0 && begun.every((id, index) => ids[from + index] === id)) scores[word.at(-1)] = -Infinity;
    }
    if (ids.length < config.min_length) for (const id of config.eos_ids) scores[id] = -Infinity;
    if (config.forced_bos_token_id !== null && ids.length === 1) forceTokens(scores, [config.forced_bos_token_id]);
    if (config.forced_eos_token_id.length && ids.length === config.max_length - 1) forceTokens(scores, config.forced_eos_token_id);
    if (config.renormalize_logits) renormalize(scores);
  };
}
