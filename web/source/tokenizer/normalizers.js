// Normalizers of tokenizer.json: each returns a function from text to text.
import { compilePattern, lowercase, utf8 } from "./unicode.js";

const CONTROL = /[\p{Cf}\p{Co}]|(?![\t\n\r])\p{Cc}/u;
const CHINESE = /[\u4E00-\u9FFF\u3400-\u4DBF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B920}-\u{2CEAF}\uF900-\uFAFF\u{2F800}-\u{2FA1F}]/gu;

const stripAccents = (text) => text.replace(/\p{Mn}/gu, "");

/** Remove control characters, and replace other white space with spaces, as BERT does. */
function clean(text) {
  const kept = Array.from(text, (one) => (one === "\ufffd" || CONTROL.test(one) ? "" : one)).join("");
  return kept.replace(/\p{White_Space}/gu, " ");
}

function bert({ clean_text, handle_chinese_chars, strip_accents, lowercase: lower }) {
  return (text) => {
    if (clean_text) text = clean(text);
    if (handle_chinese_chars) text = text.replace(CHINESE, " $& ");
    if (strip_accents ?? lower) text = stripAccents(text.normalize("NFD"));
    return lower ? lowercase(text) : text;
  };
}

/** Sentencepiece's table of replacements: a double-array trie of bytes, and the texts that it points to. */
export class ReplacementTable {
  constructor(base64) {
    const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
    const size = new DataView(bytes.buffer).getUint32(0, true);
    this.units = new Uint32Array(bytes.buffer.slice(4, 4 + size));
    this.texts = bytes.subarray(4 + size);
  }

  /** Yield [number of bytes, replacement] of each prefix of bytes that has one, shortest first. */
  *prefixes(bytes, first = 0) {
    const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let node = offset(this.units[0]);
    for (let index = first; index < bytes.length; index++) {
      node ^= bytes[index];
      const unit = this.units[node];
      if ((unit & 0x800000ff) >>> 0 !== bytes[index]) return;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) {
        const start = this.units[node] & 0x7fffffff;
        yield [index + 1 - first, this.texts.subarray(start, this.texts.indexOf(0, start))];
      }
    }
  }

  /** Return the replacement of the shortest prefix that has one; undefined if there is none. */
  find(text) {
    for (const [, replacement] of this.prefixes(utf8(text))) return new TextDecoder().decode(replacement);
    return undefined;
  }

  /** Replace the longest prefix that has a replacement, again and again, as sentencepiece does. */
  replaceAll(text) {
    const bytes = utf8(text), result = [];
    for (let index = 0; index < bytes.length; ) {
      let size = 0, replacement = null;
      for ([size, replacement] of this.prefixes(bytes, index));
      if (!replacement) {
        size = bytes[index] < 0x80 ? 1 : bytes[index] < 0xe0 ? 2 : bytes[index] < 0xf0 ? 3 : 4;
        replacement = bytes.subarray(index, index + size);
      }
      result.push(...replacement);
      index += size;
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(result));
  }
}

function precompiled({ precompiled_charsmap: table }) {
  if (!table) return (text) => text;
  const replacements = new ReplacementTable(table);
  const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });
  return (text) =>
    Array.from(graphemes.segment(text), ({ segment }) => {
      const whole = utf8(segment).length < 6 ? replacements.find(segment) : undefined;
      return whole ?? Array.from(segment, (one) => replacements.find(one) ?? one).join("");
    }).join("");
}

const TYPES = {
  ...Object.fromEntries(["NFC", "NFD", "NFKC", "NFKD"].map((form) => [form, () => (text) => text.normalize(form)])),
  Prepend: ({ prepend }) => (text) => (text ? prepend + text : text),
  Replace({ pattern, content }) {
    const compiled = compilePattern(pattern);
    return (text) => text.replace(compiled, () => content);
  },
  Lowercase: () => lowercase,
  StripAccents: () => stripAccents,
  Strip: ({ strip_left: left, strip_right: right }) => (text) => {
    if (left) text = text.replace(/^\p{White_Space}+/u, "");
    return right ? text.replace(/\p{White_Space}+$/u, "") : text;
  },
  BertNormalizer: bert,
  Precompiled: precompiled,
  Sequence({ normalizers }) {
    const each = normalizers.map(compileNormalizer);
    return (text) => each.reduce((result, normalize) => normalize(result), text);
  },
};

/** Return the function of a normalizer of tokenizer.json; null changes nothing. */
export function compileNormalizer(spec) {
  return spec ? TYPES[spec.type](spec) : (text) => text;
}
