"""Tokenize only the beginning of long texts, as much as the model uses.

A text is split before a space between two letters or digits. A tokenizer that splits texts at such spaces gives the
beginning the same tokens as inside the whole text. So only a beginning with enough tokens is tokenized. BERT's
tokenizer also splits between Chinese characters, and an overlong word is one unknown token, whatever its length.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from clearhead.memory import LongTextError, MemoryLimitError, check_memory
from clearhead.tokenizers.base import Tokens, describe_invalid_unicode
from clearhead.tokenizers.vocabulary_files import WORDS

_CHARACTERS_PER_TOKEN = 16
"""Characters of the first beginning for each required token; a word piece has about four."""

_BYTES_PER_CHARACTER = 180
"""Bytes of memory for each character of a text that cannot be split."""

_CUT = re.compile(r"(?<=[^\W_]) (?=[^\W_])")
_CHINESE = "[\u4e00-\u9fff]"
_LETTER = "[A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]"
_SPACE_INSIDE = re.compile(r"[^\s▁][\s▁]")
"""A space after another character: a token with one may cross a split."""

_NORMALIZERS = frozenset(
    {
        *("BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend"),
        *("Strip", "StripAccents"),
    }
)
"""Normalizers whose result before a space between letters does not depend on the text after it."""
_SPACE_PATTERNS = frozenset({r"\s+", " +", " {2,}", r"\s{2,}"})
_PRE_TOKENIZERS = frozenset(
    {"BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "UnicodeScripts", "Whitespace"}
    | {"WhitespaceSplit"}
)
_MODELS = frozenset({"BPE", "Unigram", "WordLevel", "WordPiece"})


@dataclass(frozen=True)
class SplitRules:
    """Positions at which a tokenizer always splits texts.

    Args:
        pattern: matches the positions; the tokens before a match do not depend on the text after it.
        long_word: matches a word that becomes one unknown token; its first group is a sufficient part of it. None if
            there is no such limit.
    """

    pattern: re.Pattern[str]
    long_word: re.Pattern[str] | None = None

    def beginning(self, text: str, characters: int) -> str:
        """Return the text up to the first split at or after a number of characters."""
        cut = self.pattern.search(text, characters)
        return text if cut is None else text[: cut.start()]


def encode_truncated(
    texts: Sequence[str],
    max_length: int,
    encode: Callable[[Sequence[str]], list[Tokens]],
    rules: Callable[[str], SplitRules | None],
) -> list[Tokens]:
    """Return `encode(texts)`, but tokenize only as much of a long text as the result needs.

    Args:
        texts: the texts.
        max_length: the number of tokens to which `encode` truncates a text.
        encode: the tokenizer.
        rules: from a text to the positions at which it can be split; None if no position is certain.

    Raises:
        ValueError: a text contains half a surrogate pair, or cannot be split and is too long for the memory.
    """
    characters = _CHARACTERS_PER_TOKEN * max_length
    splittable = {
        index: split
        for index, text in enumerate(texts)
        if len(text) > characters and (split := rules(text)) is not None
    }
    original, texts = texts, list(texts)
    for index, split in splittable.items():
        if split.long_word:
            texts[index] = split.long_word.sub(r"\1", texts[index])
    parts = list(texts)
    for index, split in splittable.items():
        parts[index] = split.beginning(texts[index], characters)
    for text in parts:
        _check_tokenizing_memory(text)
    if not splittable:
        return encode(texts)
    for index in splittable:
        _check_unicode(original, texts[index][len(parts[index]) :])
    result = encode(parts)
    pending = list(splittable)
    while pending := [i for i in pending if len(parts[i]) < len(texts[i]) and not result[i].truncated]:
        characters *= 2
        for index in pending:
            parts[index] = splittable[index].beginning(texts[index], characters)
        for index, tokens in zip(pending, encode([parts[index] for index in pending]), strict=True):
            result[index] = tokens
    return result


def beginning(text: str, max_length: int, count: Callable[[str], int], rules: Callable[[], SplitRules | None]) -> str:
    """Return a beginning of a long text that has at least `max_length` tokens; shorter texts as they are.

    Args:
        text: the text.
        max_length: the number of tokens to which it is truncated later.
        count: the number of tokens of a part of the text.
        rules: the positions at which the text can be split; None if no position is certain.

    Raises:
        ValueError: the text cannot be split and is too long for the memory.
    """
    characters = _CHARACTERS_PER_TOKEN * max_length
    if len(text) <= characters:
        return text
    split = rules()
    part = text if split is None else split.beginning(text, characters)
    while split is not None and len(part) < len(text) and count(part) < max_length:
        characters *= 2
        part = split.beginning(text, characters)
    _check_tokenizing_memory(part)
    return part


def split_rules(backend: Backend) -> SplitRules | None:
    """Return where a tokenizer of the `tokenizers` library always splits texts; None if this is not known."""
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
    if any(re.fullmatch(f"{_LETTER}+", token) for token in added):  # it may match inside a word
        return SplitRules(pattern)
    longest = backend.model.max_input_chars_per_word + 1
    try:
        return SplitRules(pattern, re.compile(f"({_LETTER}{{{longest}}}){_LETTER}+"))
    except OverflowError:  # no word is that long
        return SplitRules(pattern)


def splits_at_spaces(backend: Backend, special: Iterable[str] = ()) -> bool:
    """Return whether a tokenizer of the `tokenizers` library splits all texts at a space between letters.

    Args:
        backend: the tokenizer.
        special: more tokens that are matched in texts.
    """
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    if any(_SPACE_INSIDE.search(token) or token[:1].isspace() for token in (*added, *special)):
        return False
    model = backend.model
    if type(model).__name__ not in _MODELS or getattr(model, "dropout", None):
        return False
    if not all(map(_is_local, _parts(backend.normalizer, "normalizers"))):
        return False
    splitters = [_splits(part) for part in _parts(backend.pre_tokenizer, "pretokenizers")]
    return None not in splitters and any(splitters)


def split_rules_of_pieces(pieces: Iterable[str]) -> SplitRules | None:
    """Return where a sentencepiece vocabulary always splits texts; None if a piece crosses a space."""
    listed = list(pieces)
    return SplitRules(_CUT) if "▁" in listed and not any(_SPACE_INSIDE.search(piece) for piece in listed) else None


def _check_tokenizing_memory(text: str) -> None:
    try:
        check_memory(
            _BYTES_PER_CHARACTER * len(text),
            f"tokenizing a text of {len(text):,} characters that cannot be split at a space",
            "Split the text.",
        )
    except MemoryLimitError as error:
        raise LongTextError(str(error)) from None


def _check_unicode(texts: Sequence[str], rest: str) -> None:
    """Raise the error that tokenizing the rest of a text would raise."""
    if not rest.isascii():
        try:
            rest.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(describe_invalid_unicode(texts)) from None


def _parts(component: Any, key: str) -> list[dict[str, Any]]:
    """Return the state of a component; for a sequence, the states of its components."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    pending, result = [state], list[dict[str, Any]]()
    while pending:
        part = pending.pop(0)
        if part["type"] == "Sequence":
            pending = [*part[key], *pending]
        else:
            result.append(part)
    return result


def _is_local(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] != "Replace":
        return normalizer["type"] in _NORMALIZERS
    pattern = normalizer["pattern"]
    if "String" in pattern:
        return _SPACE_INSIDE.search(pattern["String"]) is None
    return pattern.get("Regex") in _SPACE_PATTERNS


def _splits(pre_tokenizer: dict[str, Any]) -> bool | None:
    """Return whether a pre-tokenizer splits texts at spaces; None if it may depend on the text after the space."""
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
