// Arrays with a shape, and the functions of scores that a search needs.

/** Return the product of the sizes of a shape. */
export const sizeOf = (shape) => shape.reduce((product, size) => product * size, 1);

/** Return zeros as {data, shape}. */
export const zeros = (shape) => ({ data: new Float32Array(sizeOf(shape)), shape });

/** Return the log-probabilities of logits. */
export function logSoftmax(logits, temperature = 1) {
  let largest = -Infinity;
  for (const logit of logits) if (logit > largest) largest = logit;
  let total = 0;
  for (const logit of logits) total += Math.exp((logit - largest) / temperature);
  const shift = Math.log(total);
  return Float32Array.from(logits, (logit) => (logit - largest) / temperature - shift);
}

/** Return the indices of the k largest scores, largest first; of equal ones, the first comes first. */
export function topIndices(scores, k) {
  const best = []; // ascending order of insertion, largest first
  for (let index = 0; index < scores.length; index++) {
    const score = scores[index];
    if (best.length === k && !(score > scores[best[k - 1]])) continue;
    let at = best.length;
    while (at > 0 && score > scores[best[at - 1]]) at--;
    best.splice(at, 0, index);
    if (best.length > k) best.pop();
  }
  return best;
}
