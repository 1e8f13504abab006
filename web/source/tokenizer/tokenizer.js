// The tokenizer of a model: the same ids as the `tokenizers` library gives.
import { compileDecoder } from "./decoders.js";
import { compileModel, vocabularyOf } from "./models.js";
import { compileNormalizer } from "./normalizers.js";
import { compilePreTokenizer } from "./pre_tokenizers.js";
import { SentencePiece, sentencePieceNormalizer } from "./sentencepiece.js";
import { compilePattern, wellFormed } from "./unicode.js";

/** Return the ids before and after a text of a post-processor. */
function surroundingIds(spec) {
  switch (spec?.type) {
    case "TemplateProcessing": {
      const at = spec.single.findIndex((part) => part.Sequence);
      const ids = (parts) => parts.flatMap((part) => spec.special_tokens[part.SpecialToken.id].ids);
      return [ids(spec.single.slice(0, at)), ids(spec.single.slice(at + 1))];
    }
    case "BertProcessing":
    case "RobertaProcessing":
      return [[spec.cls[1]], [spec.sep[1]]];
    case "Sequence":
      return spec.processors.map(surroundingIds).find(([before, after]) => before.length + after.length) ?? [[], []];
    default:
      return [[], []];
  }
}

/** Return a function that splits a text at added tokens, into [text, token] pairs; the token is null between them. */
function compileAddedTokens(tokens) {
  if (!tokens.length) return (text) => (text ? [[text, null]] : []);
  const byContent = new Map(tokens.map((token) => [token.content, token]));
  const contents = [...byContent.keys()].sort((one, other) => other.length - one.length);
  const pattern = new RegExp(contents.map((content) => compilePattern({ String: content }).source).join("|"), "gu");
  const isWord = (character) => /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]/u.test(character ?? "");
  return (text) => {
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(pattern)) {
      const token = byContent.get(match[0]);
      let start = match.index, stop = start + match[0].length;
      if (start < end) continue;
      if (token.single_word && (isWord(text[start - 1]) || isWord(text[stop]))) continue;
      if (token.lstrip) start = Math.max(end, start - text.slice(0, start).match(/\p{White_Space}*$/u)[0].length);
      if (token.rstrip) stop += text.slice(stop).match(/^\p{White_Space}*/u)[0].length;
      if (start > end) parts.push([text.slice(end, start), null]);
      parts.push([text.slice(start, stop), token]);
      end = stop;
    }
    if (end < text.length) parts.push([text.slice(end), null]);
    return parts;
  };
}

/**
 * A tokenizer.
 *
 * `spec` is the content of tokenizer.json, with `splits_special_tokens` and `special_ids`. Its model may also be of the
 * type "SentencePiece", with a normalizer of that type, the list `tokens`, and `takes_language_code`: whether a text may
 * begin with a code such as >>de<<.
 */
export class Tokenizer {
  constructor(spec) {
    const isSentencePiece = spec.model.type === "SentencePiece";
    this.normalize = isSentencePiece ? sentencePieceNormalizer(spec.normalizer) : compileNormalizer(spec.normalizer);
    this.split = compilePreTokenizer(spec.pre_tokenizer);
    this.model = isSentencePiece ? new SentencePiece(spec.model) : compileModel(spec.model);
    this.takesLanguageCode = spec.takes_language_code;
    this.join = compileDecoder(spec.decoder);
    [this.before, this.after] = surroundingIds(spec.post_processor);
    this.specialIds = new Set(spec.special_ids);
    const added = spec.added_tokens.filter((token) => !(token.special && spec.splits_special_tokens));
    this.splitRaw = compileAddedTokens(added.filter((token) => !token.normalized));
    const normalized = added.filter((token) => token.normalized);
    this.splitNormalized = compileAddedTokens(normalized.map((token) => ({ ...token, content: this.normalize(token.content) })));
    this.tokens = spec.tokens ?? [];
    if (!isSentencePiece) {
      for (const [token, id] of vocabularyOf(spec.model)) this.tokens[id] = token;
      for (const { content, id } of spec.added_tokens) this.tokens[id] = content;
    }
  }

  /** Return the ids of a text without special tokens. */
  textIds(text) {
    const ids = [];
    for (const [, own] of this.words(text)) for (const id of own) ids.push(id);
    return ids;
  }

  /** Yield the words of a text, each with its ids; an added token is a word. */
  *words(text) {
    let isFirst = true;
    for (const [raw, rawToken] of this.splitRaw(wellFormed(text))) {
      const code = this.takesLanguageCode && !rawToken ? (raw.match(/^>>.*?<</s)?.[0] ?? "") : "";
      if (code) yield [code, [this.model.ids.get(code) ?? this.model.unknown]];
      const parts = rawToken ? [[raw, rawToken]] : this.splitNormalized(this.normalize(raw.slice(code.length)));
      for (const [part, token] of parts) {
        if (token) yield [part, [token.id]];
        else for (const word of this.split(part, isFirst)) yield [word, this.model.tokenize(word)];
        isFirst = false;
      }
    }
  }

  /** Return the words of a text with the tokens of each: before and after each merge, if the model merges tokens. */
  wordSteps(text) {
    return Array.from(this.words(text), ([word, ids]) => {
      const steps = this.model.steps?.(word) ?? [], isMerged = steps.at(-1)?.join() === ids.join();
      return { word, steps: (isMerged ? steps : [ids]).map((one) => this.toTokens(one)) };
    });
  }

  /** Return {ids, tokens, truncated} of a text with special tokens, cut to `maxLength` tokens. */
  encode(text, maxLength = Infinity) {
    const all = this.textIds(text), room = (maxLength ?? Infinity) - this.before.length - this.after.length;
    const ids = [...this.before, ...all.slice(0, room), ...this.after];
    return { ids, tokens: this.toTokens(ids), truncated: all.length > room };
  }

  /** Return the text of ids, without special tokens. */
  decode(ids) {
    const tokens = ids.filter((id) => !this.specialIds.has(id)).map((id) => this.tokens[id]).filter((token) => token != null);
    return this.join(tokens).join("");
  }

  /** Return the token of each id as in the vocabulary. */
  toTokens(ids) {
    return ids.map((id) => this.tokens[id] ?? "");
  }
}
