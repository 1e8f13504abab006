// Models of tokenizer.json: from a word to token ids.
import { byteToken, utf8 } from "./unicode.js";

/** Byte pair encoding (Sennrich et al. 2016): of all adjacent pairs, the one that was learned first is merged first. */
class BytePairEncoding {
  constructor(spec) {
    this.spec = spec;
    this.ids = new Map(Object.entries(spec.vocab));
    this.merges = new Map();
    spec.merges.forEach((pair, rank) => {
      const [left, right] = Array.isArray(pair) ? pair : pair.split(" ");
      this.merges.set(this.key(this.ids.get(left), this.ids.get(right)), [rank, this.ids.get(left + right)]);
    });
    this.cache = new Map();
  }

  key(left, right) {
    return left * 0x200000 + right;
  }

  tokenize(word) {
    let ids = this.cache.get(word);
    if (!ids) {
      ids = this.spec.ignore_merges && this.ids.has(word) ? [this.ids.get(word)] : this.merge(this.characters(word));
      if (this.cache.size < 10000) this.cache.set(word, ids);
    }
    return ids;
  }

  characters(word) {
    const result = [];
    let unknown = null;
    const flush = () => {
      if (unknown !== null) result.push(unknown);
      unknown = null;
    };
    for (const character of word) {
      const id = this.ids.get(character);
      if (id !== undefined) {
        flush();
        result.push(id);
        continue;
      }
      const bytes = this.spec.byte_fallback ? Array.from(utf8(character), (byte) => this.ids.get(byteToken(byte))) : [undefined];
      if (bytes.every((one) => one !== undefined)) {
        result.push(...bytes);
      } else if (this.spec.unk_token != null) {
        if (!this.spec.fuse_unk) flush();
        unknown = this.ids.get(this.spec.unk_token);
      }
    }
    flush();
    return result;
  }

  /** Return the ids of a word before its first merge, and after each. */
  steps(word) {
    const ids = this.characters(word), steps = [[...ids]];
    this.merge(ids, () => steps.push([...ids]));
    return steps;
  }

  merge(ids, onMerge = () => {}) {
    for (;;) {
      let best = null;
      for (let index = 0; index + 1 < ids.length; index++) {
        const found = this.merges.get(this.key(ids[index], ids[index + 1]));
        if (found && (!best || found[0] < best.rank)) best = { rank: found[0], id: found[1], index };
      }
      if (!best) return ids;
      ids.splice(best.index, 2, best.id);
      onMerge();
    }
  }
}

/** WordPiece (Wu et al. 2016): the longest known beginning of a word, then that of the rest. */
class WordPiece {
  constructor(spec) {
    this.spec = spec;
    this.ids = new Map(Object.entries(spec.vocab));
  }

  tokenize(word) {
    const characters = Array.from(word), unknown = [this.ids.get(this.spec.unk_token)];
    if (characters.length > this.spec.max_input_chars_per_word) return unknown;
    const result = [];
    for (let start = 0; start < characters.length; ) {
      let end = characters.length, id;
      for (; end > start; end--) {
        id = this.ids.get((start ? this.spec.continuing_subword_prefix : "") + characters.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return unknown;
      result.push(id);
      start = end;
    }
    return result;
  }
}

const UNKNOWN_PENALTY = 10;

/** Unigram language model (Kudo 2018): the most probable pieces, by the Viterbi algorithm. */
export class Unigram {
  constructor(spec) {
    this.spec = spec;
    this.pieces = new Map(spec.vocab.map(([piece, score], id) => [piece, { id, score }]));
    this.longest = 0;
    let lowest = Infinity;
    for (const [piece, score] of spec.vocab) {
      this.longest = Math.max(this.longest, piece.length);
      lowest = Math.min(lowest, score);
    }
    this.unknownScore = lowest - UNKNOWN_PENALTY;
  }

  tokenize(word) {
    const pieces = this.segment(word), result = [];
    for (const piece of pieces) {
      const known = this.pieces.get(piece);
      const bytes = known || !this.spec.byte_fallback ? [] : Array.from(utf8(piece), (byte) => this.pieces.get(byteToken(byte)));
      if (known) result.push(known.id);
      else if (bytes.length && bytes.every(Boolean)) result.push(...bytes.map((one) => one.id));
      else result.push(this.spec.unk_id);
    }
    return result;
  }

  segment(word) {
    const best = Array.from({ length: word.length + 1 }, () => null); // the best path to each position
    best[0] = { score: 0, start: 0, known: true };
    for (let start = 0; start < word.length; ) {
      const size = word.codePointAt(start) > 0xffff ? 2 : 1;
      const offer = (end, score, known) => {
        if (!best[end] || score > best[end].score) best[end] = { score, start, known };
      };
      for (let end = start + size; end <= Math.min(word.length, start + this.longest); end++) {
        const piece = this.pieces.get(word.slice(start, end));
        if (piece) offer(end, best[start].score + piece.score, true);
      }
      if (!this.pieces.has(word.slice(start, start + size))) offer(start + size, best[start].score + this.unknownScore, false);
      start += size;
    }
    const pieces = [];
    let joins = false; // unknown characters in a row are one piece
    for (let end = word.length; end > 0; end = best[end].start) {
      const { start, known } = best[end];
      if (joins && !known) pieces[pieces.length - 1] = word.slice(start, end) + pieces[pieces.length - 1];
      else pieces.push(word.slice(start, end));
      joins = !known;
    }
    return pieces.reverse();
  }
}

const TYPES = { BPE: BytePairEncoding, WordPiece, Unigram };

/** Return the model of tokenizer.json, with `tokenize(word)`. */
export const compileModel = (spec) => new TYPES[spec.type](spec);

/** Return [token, id] pairs of the model's vocabulary. */
export function vocabularyOf(spec) {
  return spec.type === "Unigram" ? spec.vocab.map(([piece], id) => [piece, id]) : Object.entries(spec.vocab);
}
