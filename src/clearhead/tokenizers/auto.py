"""Load the tokenizer of a model folder from whichever files it has."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clearhead.io.json import read_json
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.base import MultilingualTokenizer, TextTokenizer
from clearhead.tokenizers.languages import LanguageTokenScheme
from clearhead.tokenizers.sentencepiece import SentencePieceTokenizer
from clearhead.tokenizers.sentencepiece_vocabulary import SentencePieceVocabulary
from clearhead.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)

AnyTokenizer = TypeVar("AnyTokenizer", bound=TextTokenizer)

_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


@dataclass(frozen=True)
class TokenizerFiles:
    """Tokenizer files of a model folder.

    Args:
        folder: the model folder.
        config: the contents of tokenizer_config.json.
        has_token: whether the files define a token.
    """

    folder: Path
    config: dict[str, Any]
    has_token: Callable[[str], bool]

    @property
    def tokenizer_class(self) -> str:
        """The class in transformers, without "Fast", from tokenizer_config.json or else from config.json."""
        name = self.config.get("tokenizer_class")
        if name is None and (self.folder / "config.json").is_file():
            name = read_json(self.folder / "config.json").get("tokenizer_class")
        return str(name).removesuffix("Fast")


@dataclass(frozen=True)
class TokenizerFormat:
    """Tokenizer of a family: its sentencepiece vocabulary and its language tokens. The default has neither.

    Args:
        vocabulary: the sentencepiece vocabulary of folders without a tokenizer.json; None for families without one.
        languages: how texts are marked with their language; None for families without languages.
    """

    vocabulary: Callable[[TokenizerFiles], SentencePieceVocabulary] | None = None
    languages: Callable[[TokenizerFiles], LanguageTokenScheme] | None = None

    def scheme(self, files: TokenizerFiles) -> LanguageTokenScheme | None:
        """Return the language tokens that the files use; None without languages."""
        return None if self.languages is None else self.languages(files)


def tokenizer_from_folder(folder: Path, tokenizer_format: TokenizerFormat) -> TextTokenizer:
    """Return the tokenizer in a model folder: from tokenizer.json, else from the vocabulary files of the family.

    A multilingual tokenizer encodes texts in the source language of tokenizer_config.json, else in the default of the
    family. `for_languages` returns one for other languages.

    Args:
        folder: the model folder.
        tokenizer_format: the tokenizer of the family.

    Raises:
        ValueError: a file is missing or broken, or sentencepiece is required but not installed.

    >>> from clearhead.io.hub import resolve_model
    >>> from clearhead.tokenizers.auto import TokenizerFormat, tokenizer_from_folder
    >>> tokenizer = tokenizer_from_folder(resolve_model("all-MiniLM-L6-v2"), TokenizerFormat())
    >>> tokenizer.decode(tokenizer.encode(["The old bridge."])[0].ids)
    'the old bridge.'
    """
    config = special_tokens.read_config(folder)
    if tokenizer_format.vocabulary is not None and not (folder / "tokenizer.json").is_file():
        files = TokenizerFiles(folder, config, special_tokens.all_special_tokens(config).__contains__)
        vocabulary = tokenizer_format.vocabulary(files)
        return SentencePieceTokenizer.from_folder(folder, vocabulary, tokenizer_format.scheme(files))
    tokenizer = Tokenizer.from_folder(folder)
    files = TokenizerFiles(folder, config, lambda token: tokenizer.token_id(token) is not None)
    return tokenizer.with_language_scheme(tokenizer_format.scheme(files))


_SAMPLED_TOKENS = 100


def _sample(tokenizer: Tokenizer) -> str:
    """Return a text of which the tokenizer has tokens, in any script."""
    return str(tokenizer.backend.decode([*range(_SAMPLED_TOKENS)], skip_special_tokens=False))


def check_pairs(tokenizer: Tokenizer, folder: Path, num_types: int) -> None:
    """Check that the tokenizer of a model of pairs has tokens for a pair, and the model an embedding for each type.

    Args:
        tokenizer: the tokenizer.
        folder: the folder with its files, for messages.
        num_types: the rows of the model's token type embedding; 0 for none.

    Raises:
        ValueError: it does not.
    """
    sample = _sample(tokenizer)
    pair = tokenizer.backend.encode(sample, sample)
    if not pair.ids:
        raise ValueError(f"{folder / 'tokenizer.json'}: the tokenizer gives no tokens for a pair of texts")
    largest = max(pair.type_ids)
    if num_types > 1 and tokenizer.has_token_types and largest >= num_types:
        raise ValueError(
            f"{folder / 'tokenizer.json'} gives a token the type {largest}, but the model has embeddings for the types "
            f"0 to {num_types - 1}"
        )


def check_vocabulary(
    tokenizer: AnyTokenizer, folder: Path, vocab_size: int, target_vocab_size: int | None = None
) -> AnyTokenizer:
    """Return the tokenizer of a folder if the model has an embedding for each of its tokens.

    A special token that is never added automatically only causes a warning. Published checkpoints have such tokens:
    for example, `<mask>` in BART models fine-tuned for summarization.

    Args:
        tokenizer: the tokenizer.
        folder: the folder with its files, for messages.
        vocab_size: the rows of the model's embedding.
        target_vocab_size: the rows of the target embedding; vocab_size if None.

    Raises:
        ValueError: the id of a token has no embedding; the message names the file.
    """
    assert isinstance(tokenizer, MultilingualTokenizer)
    file_name = next((name for name in _VOCABULARIES if (folder / name).is_file()), "tokenizer_config.json")
    added = special_tokens.added_token_ids(tokenizer.config)
    automatic_ids = tokenizer.encode([""])[0].ids
    if isinstance(tokenizer, Tokenizer) and not tokenizer.backend.encode(_sample(tokenizer)).ids:
        raise ValueError(f"{folder / file_name}: the tokenizer gives no tokens for a text of its own tokens")
    # a tokenizer.json defines the ids of these tokens a second time
    automatic = dict(zip(tokenizer.ids_to_tokens(automatic_ids), automatic_ids, strict=True))
    vocabulary = dict(tokenizer.vocabulary())
    if isinstance(tokenizer, Tokenizer):
        for number in tokenizer.special_ids:
            (token,) = tokenizer.ids_to_tokens([number])
            if number >= vocab_size and token not in automatic and token.strip():  # nearly all texts contain blanks
                vocabulary.pop(token, None)
                log.warning(
                    "%s: a text that contains %s is refused: the token has the id %d, and the model has embeddings for "
                    "the ids 0 to %d",
                    *(folder / file_name, token, number, vocab_size - 1),
                )

    def check(ids: Mapping[str, int], size: int, name: str) -> None:
        token = max(ids, key=ids.__getitem__, default="")
        if ids and ids[token] >= size:
            source = "tokenizer_config.json" if added.get(token) == ids[token] else name
            raise ValueError(
                f"{folder / source}: token {token!r:.80} has the id {ids[token]}, but the model has embeddings for the "
                f"ids 0 to {size - 1}; use the tokenizer that the model was trained with"
            )

    check(vocabulary, vocab_size, file_name)
    check(automatic, vocab_size, file_name)
    if isinstance(tokenizer, SentencePieceTokenizer):
        own = "target_vocab.json"
        check(
            tokenizer.target_vocabulary, target_vocab_size or vocab_size, own if own in tokenizer.files else file_name
        )
    return tokenizer
