// Sentencepiece models (Kudo and Richardson 2018) with the ids of a family.
import { Unigram } from "./models.js";
import { ReplacementTable } from "./normalizers.js";
import { byteToken, utf8 } from "./unicode.js";

const NORMAL = 1, USER_DEFINED = 4, SPACE = "\u2581";

/** Sentencepiece's normalizer: replacements, then spaces, which become ▁. */
export function sentencePieceNormalizer({ precompiled_charsmap: table, add_dummy_prefix: prefix, remove_extra_whitespaces: removes }) {
  const replacements = table ? new ReplacementTable(table) : null;
  return (text) => {
    let result = replacements ? replacements.replaceAll(text) : text;
    if (removes) result = result.replace(/^ +| +$/g, "").replace(/ +/g, " ");
    if (!result) return "";
    return (prefix ? SPACE : "") + result.replaceAll(" ", SPACE);
  };
}

/** Byte pair encoding of sentencepiece: of all adjacent pairs that form a piece, the one with the best score is merged. */
class ScoredPairs {
  constructor(pieces) {
    this.scores = new Map(pieces);
  }

  segment(text) {
    const parts = Array.from(text);
    for (;;) {
      let best = null;
      for (let index = 0; index + 1 < parts.length; index++) {
        const score = this.scores.get(parts[index] + parts[index + 1]);
        if (score !== undefined && (!best || score > best.score)) best = { score, index };
      }
      if (!best) return this.joinUnknown(parts);
      parts.splice(best.index, 2, parts[best.index] + parts[best.index + 1]);
    }
  }

  joinUnknown(parts) {
    const joined = [];
    let joins = false;
    for (const part of parts) {
      const known = this.scores.has(part);
      if (joins && !known) joined[joined.length - 1] += part;
      else joined.push(part);
      joins = !known;
    }
    return joined;
  }
}

/** A sentencepiece model: `pieces` are [piece, score, type], `ids` the id of each piece in the family's vocabulary. */
export class SentencePiece {
  constructor({ kind, pieces, ids, unk_id: unknown, byte_fallback: bytes }) {
    const matched = pieces.filter(([, , type]) => type === NORMAL || type === USER_DEFINED).map(([piece, score]) => [piece, score]);
    this.model = kind === "bpe" ? new ScoredPairs(matched) : new Unigram({ vocab: matched });
    this.known = new Set(matched.map(([piece]) => piece));
    this.ids = new Map(Object.entries(ids));
    Object.assign(this, { unknown, bytes });
  }

  tokenize(text) {
    const toIds = (piece) => {
      if (this.bytes && !this.known.has(piece)) return Array.from(utf8(piece), (byte) => this.ids.get(byteToken(byte)) ?? this.unknown);
      return [this.ids.get(piece) ?? this.unknown];
    };
    return this.model.segment(text).flatMap(toIds);
  }
}
