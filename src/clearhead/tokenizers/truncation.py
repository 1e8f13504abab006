"""Tokens of the beginning of a long text, without tokenizing the rest.

A text is cut before a blank between two letters or digits. A tokenizer that splits texts at such blanks gives the
beginning the same tokens as the whole text gives it, so no more than a beginning with enough tokens is tokenized.
BERT's tokenizer also splits between Chinese characters, and a word that is too long is one unknown token, however long.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from clearhead.memory import check_memory
from clearhead.tokenizers.base import Tokens, describe_invalid_unicode
from clearhead.tokenizers.vocabulary_files import WORDS

_CHARACTERS = 16
"""Characters of a first beginning for each token that is needed; a word piece has about four."""

_WHOLE = 180
"""Bytes of memory for each character of a text that is tokenized whole."""

_CUT = re.compile(r"(?<=[^\W_]) (?=[^\W_])")
_CHINESE = "[\u4e00-\u9fff]"
_LETTER = "[A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]"
_BLANK_INSIDE = re.compile(r"[^\s▁][\s▁]")
"""A blank behind another character: what may reach over a cut."""

_NORMALIZERS = frozenset(
    {
        *("BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend"),
        *("Strip", "StripAccents"),
    }
)
"""Normalizers for which a blank between letters separates what stands before it from what follows."""
_BLANK_PATTERNS = frozenset({r"\s+", " +", " {2,}", r"\s{2,}"})
_PRE_TOKENIZERS = frozenset(
    {"BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "UnicodeScripts", "Whitespace"}
    | {"WhitespaceSplit"}
)
_MODELS = frozenset({"BPE", "Unigram", "WordLevel", "WordPiece"})


@dataclass(frozen=True)
class SplitRules:
    """Where a tokenizer certainly splits texts.

    Args:
        pattern: matches where a text may be cut: the tokens before a match do not depend on what follows.
        long_word: matches a word that is one unknown token, its first group the part that is enough for that.
    """

    pattern: re.Pattern[str]
    long_word: re.Pattern[str] | None = None

    def beginning(self, text: str, characters: int) -> str:
        """Return the text up to the first cut at or after a number of characters."""
        cut = self.pattern.search(text, characters)
        return text if cut is None else text[: cut.start()]


def encode_truncated(
    texts: Sequence[str],
    max_length: int,
    encode: Callable[[Sequence[str]], list[Tokens]],
    cuts: Callable[[str], SplitRules | None],
) -> list[Tokens]:
    """Return what `encode` returns for the texts, but tokenize no more of a long text than can be used.

    Args:
        texts: the texts.
        max_length: tokens after which `encode` truncates a text.
        encode: the tokenizer.
        cuts: where a text may be cut; None where that is nowhere certain.

    Raises:
        ValueError: a text with half a surrogate pair, or one that has no cut and is too long for the memory.
    """
    characters = _CHARACTERS * max_length
    certain = {
        place: sure for place, text in enumerate(texts) if len(text) > characters and (sure := cuts(text)) is not None
    }
    long = list(certain)
    given, texts = texts, list(texts)
    for place in long:
        if word := certain[place].long_word:
            texts[place] = word.sub(r"\1", texts[place])
    parts = dict(enumerate(texts))
    for place in long:
        parts[place] = certain[place].beginning(texts[place], characters)
    for text in parts.values():
        check_memory(
            _WHOLE * len(text),
            f"tokenizing a text of {len(text):,} characters that cannot be cut at a blank",
            "Split the text.",
        )
    if not long:
        return encode(texts)
    for place in long:
        _check_unicode(given, texts[place][len(parts[place]) :])
    found = encode(list(parts.values()))
    while long := [place for place in long if len(parts[place]) < len(texts[place]) and not found[place].truncated]:
        characters *= 2
        parts = {place: certain[place].beginning(texts[place], characters) for place in long}
        for place, tokens in zip(long, encode(list(parts.values())), strict=True):
            found[place] = tokens
    return found


def split_rules(backend: Backend) -> SplitRules | None:
    """Return where a tokenizer of the `tokenizers` library certainly splits texts; None if that is not known."""
    if not splits_at_spaces(backend):
        return None
    normalizers = _parts(backend.normalizer, "normalizers")
    words = [part["type"] for part in _parts(backend.pre_tokenizer, "pretokenizers")]
    if type(backend.model).__name__ != "WordPiece" or words != ["BertPreTokenizer"]:
        return SplitRules(_CUT)
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    chinese = any(part["type"] == "BertNormalizer" and part["handle_chinese_chars"] for part in normalizers)
    pattern = _CUT
    if chinese and not re.search(_CHINESE, "".join(added)):  # each Chinese character is a word
        pattern = re.compile(f"{_CUT.pattern}|(?<={_CHINESE})(?={_CHINESE})")
    if any(re.fullmatch(f"{_LETTER}+", token) for token in added):  # it may be found inside a word
        return SplitRules(pattern)
    longest = backend.model.max_input_chars_per_word + 1
    return SplitRules(pattern, re.compile(f"({_LETTER}{{{longest}}}){_LETTER}+"))


def splits_at_spaces(backend: Backend, special: Iterable[str] = ()) -> bool:
    """Return whether a tokenizer of the `tokenizers` library splits all texts at a blank between letters.

    Args:
        backend: the tokenizer.
        special: more tokens that are searched for in texts.
    """
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    if any(_BLANK_INSIDE.search(token) or token[:1].isspace() for token in (*added, *special)):
        return False
    model = backend.model
    if type(model).__name__ not in _MODELS or getattr(model, "dropout", None):
        return False
    if not all(map(_is_local, _parts(backend.normalizer, "normalizers"))):
        return False
    splitters = [_splits(part) for part in _parts(backend.pre_tokenizer, "pretokenizers")]
    return None not in splitters and any(splitters)


def split_rules_of_pieces(pieces: Iterable[str]) -> SplitRules | None:
    """Return where a sentencepiece vocabulary certainly splits texts; None if a piece reaches over a blank."""
    listed = list(pieces)
    return SplitRules(_CUT) if "▁" in listed and not any(_BLANK_INSIDE.search(piece) for piece in listed) else None


def _check_unicode(texts: Sequence[str], rest: str) -> None:
    """Raise the error that tokenizing the rest would raise."""
    if not rest.isascii():
        try:
            rest.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(describe_invalid_unicode(texts)) from None


def _parts(component: Any, key: str) -> list[dict[str, Any]]:
    """Return the state of a component, and of a sequence that of each of its components."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    waiting, found = [state], list[dict[str, Any]]()
    while waiting:
        part = waiting.pop(0)
        if part["type"] == "Sequence":
            waiting = [*part[key], *waiting]
        else:
            found.append(part)
    return found


def _is_local(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] != "Replace":
        return normalizer["type"] in _NORMALIZERS
    pattern = normalizer["pattern"]
    if "String" in pattern:
        return _BLANK_INSIDE.search(pattern["String"]) is None
    return pattern.get("Regex") in _BLANK_PATTERNS


def _splits(pre_tokenizer: dict[str, Any]) -> bool | None:
    """Return whether a pre-tokenizer splits texts at blanks; None for one that may depend on what follows."""
    match pre_tokenizer["type"]:
        case "Split":
            return True if pre_tokenizer["pattern"].get("Regex") == WORDS else None
        case "ByteLevel":
            return bool(pre_tokenizer.get("use_regex", True))
        case "Metaspace":
            return bool(pre_tokenizer.get("split", True))
        case "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit":
            return True
    return False if pre_tokenizer["type"] in _PRE_TOKENIZERS else None
