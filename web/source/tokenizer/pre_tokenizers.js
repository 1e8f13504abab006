// Pre-tokenizers of tokenizer.json: each returns a function from a text to its words.
import { BYTE_CHARACTERS, compilePattern, splitMatches, utf8 } from "./unicode.js";

const GPT2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const SPACE = /\p{White_Space}+/gu;
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}]/gu;

/** Join the parts of a split text as a behavior of the library says. */
function joinParts(parts, behavior) {
  if (behavior === "Removed") return parts.filter(([, isMatch]) => !isMatch).map(([part]) => part);
  if (behavior === "Isolated") return parts.map(([part]) => part);
  const words = [];
  let joins = false; // whether the next part continues the last word
  for (const [index, [part, isMatch]] of parts.entries()) {
    if (behavior === "Contiguous") joins = index > 0 && parts[index - 1][1] === isMatch;
    if (behavior === "MergedWithPrevious") joins = isMatch && index > 0 && !parts[index - 1][1];
    if (behavior === "MergedWithNext") joins = !isMatch && index > 0 && parts[index - 1][1];
    if (joins) words[words.length - 1] += part;
    else words.push(part);
  }
  return words;
}

/** Split a text at each single match. */
function splitEach(text, pattern) {
  return splitMatches(text, pattern).flatMap(([part, isMatch]) => (isMatch ? Array.from(part, (one) => [one, true]) : [[part, false]]));
}

const TYPES = {
  Split({ pattern, behavior, invert }) {
    const compiled = compilePattern(pattern);
    return (text) => joinParts(splitMatches(text, compiled).map(([part, isMatch]) => [part, isMatch !== invert]), behavior);
  },
  WhitespaceSplit: () => (text) => joinParts(splitMatches(text, SPACE), "Removed"),
  BertPreTokenizer: () => (text) =>
    joinParts(splitMatches(text, SPACE), "Removed").flatMap((word) => joinParts(splitEach(word, PUNCTUATION), "Isolated")),
  Metaspace({ replacement, prepend_scheme: scheme = "always", split = true }) {
    const mark = compilePattern({ String: replacement });
    return (text, isFirst) => {
      const marked = text.replaceAll(" ", replacement);
      const prepends = (scheme === "always" || (scheme === "first" && isFirst)) && !marked.startsWith(replacement);
      const whole = prepends ? replacement + marked : marked;
      return split ? joinParts(splitEach(whole, mark), "MergedWithNext") : [whole];
    };
  },
  ByteLevel: ({ add_prefix_space: adds, use_regex: splits = true }) => (text) => {
    const whole = adds && !text.startsWith(" ") ? ` ${text}` : text;
    const words = splits ? joinParts(splitMatches(whole, GPT2), "Isolated") : [whole];
    return words.map((word) => Array.from(utf8(word), (byte) => BYTE_CHARACTERS[byte]).join(""));
  },
  Sequence({ pretokenizers }) {
    const each = pretokenizers.map(compilePreTokenizer);
    return (text, isFirst) =>
      each.reduce((words, split) => words.flatMap((word, index) => split(word, isFirst && index === 0)), [text]);
  },
};

/** Return the function of a pre-tokenizer of tokenizer.json: (text, isFirst) to words. null does not split. */
export function compilePreTokenizer(spec) {
  return spec ? TYPES[spec.type](spec) : (text) => [text];
}
