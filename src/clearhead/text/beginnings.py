"""Tokens of the beginning of a long text, without tokenizing the rest.

A text is cut before a blank between two letters or digits. A tokenizer that splits texts at such blanks gives the
beginning the same tokens as the whole text gives it, so no more than a beginning with enough tokens is tokenized.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from clearhead.text.interface import Tokens, first_not_text

_CHARACTERS = 16
"""Characters of a first beginning for each token that is needed; a word piece has about four."""

_CUT = re.compile(r"(?<=[^\W_]) (?=[^\W_])")
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


def encode_beginnings(
    texts: Sequence[str],
    max_length: int,
    encode: Callable[[Sequence[str]], list[Tokens]],
    separable: Callable[[str], bool],
) -> list[Tokens]:
    """Return what `encode` returns for the texts, but tokenize no more of a long text than can be used.

    Args:
        texts: the texts.
        max_length: tokens after which `encode` truncates a text.
        encode: the tokenizer.
        separable: whether the tokens before a cut in a text do not depend on what follows.

    Raises:
        ValueError: a text with half a surrogate pair.
    """
    characters = _CHARACTERS * max_length
    long = [place for place, text in enumerate(texts) if len(text) > characters and separable(text)]
    if not long:
        return encode(texts)
    parts = dict(enumerate(texts))
    for place in long:
        parts[place] = _beginning(texts[place], characters)
        _check_unicode(texts, texts[place][len(parts[place]) :])
    found = encode(list(parts.values()))
    while long := [place for place in long if len(parts[place]) < len(texts[place]) and not found[place].truncated]:
        characters *= 2
        parts = {place: _beginning(texts[place], characters) for place in long}
        for place, tokens in zip(long, encode(list(parts.values())), strict=True):
            found[place] = tokens
    return found


def separates_blanks(backend: Backend, special: Iterable[str] = ()) -> bool:
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


def separates_pieces(pieces: Iterable[str]) -> bool:
    """Return whether no piece of a sentencepiece vocabulary reaches over a blank."""
    listed = list(pieces)
    return "▁" in listed and not any(_BLANK_INSIDE.search(piece) for piece in listed)


def _beginning(text: str, characters: int) -> str:
    """Return the text up to the first cut at or after a number of characters."""
    cut = _CUT.search(text, characters)
    return text if cut is None else text[: cut.start()]


def _check_unicode(texts: Sequence[str], rest: str) -> None:
    """Raise the error that tokenizing the rest would raise."""
    if not rest.isascii():
        try:
            rest.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(first_not_text(texts)) from None


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
    from clearhead.text.bpe import WORDS  # it imports the tokenizer

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
