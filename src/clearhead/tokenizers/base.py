"""What a tokenizer is to the rest of the library, and what tokenizers have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.languages import LanguageTokenScheme


@dataclass(frozen=True)
class Tokens:
    """One text as a model sees it.

    Args:
        ids: token ids, special tokens included.
        truncated: whether the text was longer and has been cut.
    """

    ids: list[int]
    truncated: bool


@runtime_checkable
class TextTokenizer(Protocol):
    """What a model needs of its tokenizer, whatever the files that it comes from."""

    @property
    def max_length(self) -> int | None:
        """The longest input that tokenizer_config.json allows; None where it says nothing."""

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that are no text: padding, begin and end, masks, languages; the unknown token too."""

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that the model can be told, as people write their codes; () for a model with none."""

    def encode(self, texts: Sequence[str], max_length: int | None = None) -> list[Tokens]:
        """Each text as tokens, with the model's special tokens, cut to max_length with them kept."""

    def target_ids(self, text: str) -> list[int]:
        """A target's text as ids, or a piece of it, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens; ids that the tokenizer does not know say nothing."""

    def words(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids, as the vocabulary writes them; "" for ids that the tokenizer does not know."""

    def shown(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids, as people read them."""

    def token_id(self, token: str) -> int | None:
        """The id of a token; None where there is no such token."""

    def for_languages(self, source: str | None, target: str | None) -> "LanguageConfiguredTokenizer":
        """This tokenizer, told the languages to translate from and into."""

    def save(self, folder: Path, max_length: int | None) -> None:
        """Writes the tokenizer's files; `max_length` is what they shall say of the longest input."""


@dataclass(frozen=True)
class LanguageConfiguredTokenizer:
    """A tokenizer that is told its languages.

    Args:
        tokenizer: its `encode` says the languages the way the model wants it.
        forced_bos_token_id: the id that generation must give as its first token; None for models that need none.
        start_id: the id that a target must start with; None for what the model says.
        source: the language to translate from; None where the model is not told it.
        target: the language to translate into; None for a model without languages.
    """

    tokenizer: TextTokenizer
    forced_bos_token_id: int | None
    start_id: int | None
    source: str | None
    target: str | None


class MultilingualTokenizer(ABC):
    """What tokenizers have in common: a config, and a way to be told languages."""

    config: dict[str, Any]
    scheme: LanguageTokenScheme | None

    @property
    def max_length(self) -> int | None:
        """The longest input that tokenizer_config.json allows; None where it says nothing."""
        return special_tokens.max_length(self.config)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that the model can be told, as people write their codes; () for a model with none."""
        return tuple(self._known)

    def for_languages(self, source: str | None, target: str | None) -> LanguageConfiguredTokenizer:
        """This tokenizer, told the languages to translate from and into.

        Args:
            source: None for what tokenizer_config.json says, else for the family's default.
            target: None for what tokenizer_config.json says.

        Raises:
            ValueError: a language that the model does not know, a model without languages, or no target.
        """
        if self.scheme is None or not self._known:
            if source is not None or target is not None:
                raise ValueError(
                    f"this model's tokenizer knows no languages; got source {source!r} and target {target!r}: "
                    "leave them out"
                )
            return LanguageConfiguredTokenizer(self._between(None, None), None, None, None, None)
        source, target = self.scheme.choose(self._known, self.config, source, target)
        told = self._known[target] if self.scheme.forces_target else None
        forced, start = (None, told) if self.scheme.starts else (told, None)
        return LanguageConfiguredTokenizer(self._between(source, target), forced, start, source, target)

    @abstractmethod
    def _vocabulary(self) -> dict[str, int]:
        """All tokens with their ids."""

    @abstractmethod
    def _between(self, source: str | None, target: str | None) -> TextTokenizer:
        """This tokenizer with the tokens of these languages around every text."""

    def _default_source(self) -> str | None:
        """The source language where nobody says one; None where the model is not told it, or does not know it."""
        code = None if self.scheme is None else self.scheme.source(self.config)
        return code if code in self._known else None

    @cached_property
    def _known(self) -> dict[str, int]:
        return {} if self.scheme is None else self.scheme.known(self._vocabulary())


def check_texts(texts: Iterable[object]) -> list[str]:
    """The texts as a list.

    Raises:
        ValueError: a single string, or something in the list that is none.
    """
    if isinstance(texts, str):
        raise ValueError("a list of texts is wanted; got a single string: put it in a list")
    listed: list[str] = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {number} is a {type(text).__name__}; a string is wanted")
        listed.append(text)
    return listed


def check_room(max_length: int, special_count: int) -> None:
    """Raises a ValueError for a length that leaves no room for text."""
    if max_length <= special_count:
        raise ValueError(
            f"max_length must leave room for a token beside the {special_count} special ones; got {max_length}"
        )


def first_not_text(texts: Sequence[str]) -> str:
    """What is wrong with texts that cannot be tokenised, for people."""
    for number, text in enumerate(texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return (
                f"text {number} holds half a surrogate pair at character {error.start}, which is no Unicode text; "
                'text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") mends it'
            )
    return "the texts could not be tokenised"
