"""Interface of tokenizers, and code that all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.languages import LanguageTokenScheme


@dataclass(frozen=True)
class Tokens:
    """Token ids of one text.

    Args:
        ids: token ids, special tokens included.
        truncated: whether the text was longer than the limit.
    """

    ids: list[int]
    truncated: bool


@dataclass(frozen=True)
class PairTokens(Tokens):
    """Token ids of a pair of texts.

    Args:
        token_types: the token type of each token, from the tokenizer's template for pairs.
    """

    token_types: list[int]


@runtime_checkable
class TextTokenizer(Protocol):
    """Interface of a tokenizer, independent of the files that it was loaded from."""

    @property
    def max_length(self) -> int | None:
        """Maximum number of input tokens from tokenizer_config.json; None if it has no limit."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens: padding, start and end, mask, languages, and the unknown token."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model supports, such as "de"; () for a model without languages."""

    def encode(self, texts: Sequence[str], max_length: int | None = None) -> list[Tokens]:
        """Return the tokens of each text with special tokens, truncated to max_length tokens."""

    def target_ids(self, text: str) -> list[int]:
        """Return the ids of a target text or a part of one, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens and unknown ids."""

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id as in the vocabulary; "" for unknown ids."""

    def display_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id in readable form."""

    def token_id(self, token: str) -> int | None:
        """Return the id of a token; None if the vocabulary does not contain it."""

    def for_languages(self, source: str | None, target: str | None) -> "LanguageConfiguredTokenizer":
        """Return a tokenizer for a source and a target language."""

    def save(self, folder: Path, max_length: int | None) -> None:
        """Write the tokenizer's files, with `max_length` as the maximum number of input tokens."""


@dataclass(frozen=True)
class LanguageConfiguredTokenizer:
    """Tokenizer for a source and a target language.

    Args:
        tokenizer: the tokenizer; its `encode` adds the language tokens.
        forced_bos_token_id: the id of the first token to generate; None for models that need none.
        start_id: the id that targets start with; None for the model's own.
        source: the source language; None for models that take no source language.
        target: the target language; None for models without languages.
    """

    tokenizer: TextTokenizer
    forced_bos_token_id: int | None
    start_id: int | None
    source: str | None
    target: str | None


class MultilingualTokenizer(ABC):
    """Base class of tokenizers: a config and language tokens."""

    config: dict[str, Any]
    scheme: LanguageTokenScheme | None

    @property
    def max_length(self) -> int | None:
        """Maximum number of input tokens from tokenizer_config.json; None if it has no limit."""
        return special_tokens.max_length(self.config)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model supports, such as "de"; () for a model without languages."""
        return tuple(self._language_ids)

    def for_languages(self, source: str | None, target: str | None) -> LanguageConfiguredTokenizer:
        """Return this tokenizer with a source and a target language.

        Args:
            source: the source language; None for that of tokenizer_config.json, else the default of the family.
            target: the target language; None for that of tokenizer_config.json.

        Raises:
            ValueError: a language is not supported, the model has no languages, or the target is missing.
        """
        if self.scheme is None or not self._language_ids:
            if source is not None or target is not None:
                given = {"source_lang": source, "target_lang": target}
                names = " and ".join(f"{name}={code!r}" for name, code in given.items() if code is not None)
                raise ValueError(f"this model translates between fixed languages; leave out {names}")
            return LanguageConfiguredTokenizer(self._with_languages(None, None), None, None, None, None)
        source, target = self.scheme.choose_languages(self._language_ids, self.config, source, target)
        language_id = self._language_ids[target] if self.scheme.forces_target else None
        forced, start = (None, language_id) if self.scheme.starts_target else (language_id, None)
        return LanguageConfiguredTokenizer(self._with_languages(source, target), forced, start, source, target)

    @abstractmethod
    def vocabulary(self) -> dict[str, int]:
        """Return all tokens with their ids."""

    @abstractmethod
    def _with_languages(self, source: str | None, target: str | None) -> TextTokenizer:
        """Return this tokenizer with the language tokens added to every text."""

    def _default_source(self) -> str | None:
        """Return the default source language; None if the model takes none or does not support it."""
        code = None if self.scheme is None else self.scheme.source_language(self.config)
        return code if code in self._language_ids else None

    @cached_property
    def _language_ids(self) -> dict[str, int]:
        return {} if self.scheme is None else self.scheme.language_ids(self.vocabulary())


def check_texts(texts: Iterable[object]) -> list[str]:
    """Return texts as a list.

    Args:
        texts: strings in a list, a tuple, a NumPy array, a pandas Series, a generator or any other ordered iterable.

    Raises:
        ValueError: the argument is a single string or no sequence of texts, or an item is not a string.
    """
    return list(iterate_texts(texts))


def iterate_texts(texts: Iterable[object], noun: str = "text") -> Iterator[str]:
    """Yield the texts of a stream, with the checks of `check_texts`. The noun names a text in messages."""
    if isinstance(texts, str):
        raise ValueError("expected a list of texts, got a single string. Put it in a list")
    if problem := _describe_wrong_texts(texts):
        raise ValueError(problem)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            missing = text is None or (isinstance(text, float) and text != text)  # NaN is pandas' missing value
            fix = ". Missing values: drop them, or replace them with an empty string" if missing else ""
            if isinstance(text, bytes | bytearray):
                fix = '. Decode it: data.decode("utf-8")'
            raise ValueError(f"{noun} {number} is a {type(text).__name__}; expected a string{fix}")
        yield text


def check_not_blank(text: str, name: str) -> str:
    """Return a text.

    Args:
        text: the text.
        name: its name in the message, such as "document 3".

    Raises:
        ValueError: it has no words, or half a surrogate pair.
    """
    if not text.strip():
        raise ValueError(f"{name} is {'blank' if text else 'empty'}; expected words")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"{name} has half a surrogate pair at character {error.start}, which is not valid Unicode"
        raise ValueError(message) from None
    return text


def as_texts(texts: object) -> tuple[list[str], bool]:
    """Return one text or several as a list, and whether it was one.

    Raises:
        ValueError: as in `check_texts`.

    >>> from clearhead.tokenizers.base import as_texts
    >>> as_texts("Hello"), as_texts(("Hello", "Hi"))
    ((['Hello'], True), (['Hello', 'Hi'], False))
    """
    return ([texts], True) if isinstance(texts, str) else (check_texts(texts), False)  # type: ignore[arg-type]


def _describe_wrong_texts(texts: object) -> str:
    """Return the error message for an argument that holds no texts in order; "" for others."""
    kind = type(texts).__name__
    if isinstance(texts, bytes | bytearray | memoryview):
        return f'expected texts, got {kind}. Decode them: data.decode("utf-8")'
    if hasattr(texts, "columns") or hasattr(texts, "column_names"):  # iterating would give the names of the columns
        return f'expected texts, got a {kind}. Pass one column, such as table["text"]'
    if isinstance(texts, Mapping):
        return f"expected texts, got a {kind}. Pass its values: list(texts.values())"
    if isinstance(texts, set | frozenset):
        return f"expected texts in an order, got a {kind}. Pass a list"
    if isinstance(texts, PathLike):
        return "expected a text or a list of texts, got a path. Read the file: path.read_text().splitlines()"
    if not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) == 0:
        return f"expected a text or a list of texts, got {'None' if texts is None else kind}"
    return ""


class MaxLengthError(ValueError):
    """The maximum length of a text leaves no room for its tokens."""


def check_max_length(max_length: int, special_count: int) -> None:
    """Raise a MaxLengthError for a maximum length that only fits the special tokens."""
    if max_length <= special_count:
        raise MaxLengthError(
            f"max_length must be greater than {special_count}, the number of special tokens; got {max_length}"
        )


def describe_invalid_unicode(texts: Sequence[str]) -> str:
    """Return an error message for texts that cannot be tokenized."""
    for number, text in enumerate(texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return (
                f"text {number} has half a surrogate pair at character {error.start}, which is not valid Unicode. "
                "Repair it: "
                'text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")'
            )
    return "the texts could not be tokenized"
