// Helpers for text: code points, bytes and regular expressions of the `tokenizers` library.

const encoder = new TextEncoder();

/** Return the bytes of a text in UTF-8. */
export const utf8 = (text) => encoder.encode(text);

/** Return a text with U+FFFD in place of halves of surrogate pairs, which have no UTF-8 encoding. */
export const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");

/** Return the lower case of each character by itself; JavaScript's depends on the position of a sigma. */
export const lowercase = (text) => Array.from(text, (one) => one.toLowerCase()).join("");

/** Return whether a text is one token of a byte, such as <0x0A>. */
export const isByteToken = (token) => /^<0x[0-9A-F]{2}>$/.test(token);

/** Return the token of a byte. */
export const byteToken = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/**
 * Return a regular expression of a pattern of tokenizer.json: {String: text} or {Regex: source}.
 *
 * The library's \s is the Unicode property; JavaScript's adds U+FEFF and lacks U+0085.
 */
export function compilePattern(pattern) {
  if (pattern.String !== undefined) return new RegExp(pattern.String.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"), "gu");
  return new RegExp(pattern.Regex.replace(/\\s/g, "\\p{White_Space}").replace(/\\S/g, "\\P{White_Space}"), "gu");
}

/** Split a text at the matches of a pattern; return [part, isMatch] pairs without empty parts. */
export function splitMatches(text, pattern) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > end) parts.push([text.slice(end, match.index), false]);
    if (match[0]) parts.push([match[0], true]);
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push([text.slice(end), false]);
  return parts;
}

// GPT-2's characters for bytes: printable ones stand for themselves, the others are moved above U+0100.
const printable = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
let moved = 0;
export const BYTE_CHARACTERS = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : 256 + moved++));
export const CHARACTER_BYTES = new Map(BYTE_CHARACTERS.map((character, byte) => [character, byte]));
