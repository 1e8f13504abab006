// Decoders of tokenizer.json: each returns a function from a list of tokens to a list of texts.
import { CHARACTER_BYTES, compilePattern, isByteToken } from "./unicode.js";

const decodeBytes = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));

function isUtf8(bytes) {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes));
    return true;
  } catch {
    return false;
  }
}

/** Join the tokens of bytes to characters; each byte of an invalid sequence becomes U+FFFD. */
function byteFallback(tokens) {
  const texts = [];
  let bytes = [];
  const flush = () => {
    if (bytes.length) texts.push(...(isUtf8(bytes) ? [decodeBytes(bytes)] : bytes.map(() => "\ufffd")));
    bytes = [];
  };
  for (const token of tokens) {
    if (isByteToken(token)) bytes.push(parseInt(token.slice(3, 5), 16));
    else {
      flush();
      texts.push(token);
    }
  }
  flush();
  return texts;
}

function cleanUp(text) {
  return text
    .replaceAll(" .", ".").replaceAll(" ?", "?").replaceAll(" !", "!").replaceAll(" ,", ",").replaceAll(" ' ", "'")
    .replaceAll(" n't", "n't").replaceAll(" 'm", "'m").replaceAll(" do not", " don't").replaceAll(" 's", "'s")
    .replaceAll(" 've", "'ve").replaceAll(" 're", "'re");
}

function strip({ content, start, stop }) {
  return (tokens) =>
    tokens.map((token) => {
      const characters = Array.from(token);
      let first = 0, last = characters.length;
      while (first < start && characters[first] === content) first++;
      while (characters.length - last < stop && characters[last - 1] === content) last--;
      return characters.slice(first, last).join("");
    });
}

const TYPES = {
  Replace({ pattern, content }) {
    const compiled = compilePattern(pattern);
    return (tokens) => tokens.map((token) => token.replace(compiled, () => content));
  },
  ByteFallback: () => byteFallback,
  Fuse: () => (tokens) => [tokens.join("")],
  Strip: strip,
  Trim: () => (texts) => [texts.join("").trim()],
  Metaspace({ replacement, prepend_scheme: scheme = "always" }) {
    const replace = (token) => token.replaceAll(replacement, " ");
    return (tokens) => tokens.map((token, index) => (index || scheme === "never" ? replace(token) : replace(token).replace(/^ /, "")));
  },
  ByteLevel: () => (tokens) => [decodeBytes(Array.from(tokens.join(""), (one) => CHARACTER_BYTES.get(one) ?? 63))],
  WordPiece({ prefix, cleanup }) {
    const join = (token, index) => (index === 0 ? token : token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`);
    return (tokens) => tokens.map((token, index) => (cleanup ? cleanUp(join(token, index)) : join(token, index)));
  },
  Sequence({ decoders }) {
    const each = decoders.map(compileDecoder);
    return (tokens) => each.reduce((texts, decode) => decode(texts), tokens);
  },
};

/** Return the function of a decoder of tokenizer.json; without one, tokens are joined with spaces. */
export function compileDecoder(spec) {
  return spec ? TYPES[spec.type](spec) : (tokens) => [tokens.join(" ")];
}
