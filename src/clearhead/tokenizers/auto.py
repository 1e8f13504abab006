"""A model's folder: which tokenizer its files make."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from clearhead.io.json import read_json
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.base import MultilingualTokenizer, TextTokenizer
from clearhead.tokenizers.languages import scheme
from clearhead.tokenizers.sentencepiece import SentencePieceTokenizer
from clearhead.tokenizers.sentencepiece_vocabularies import layout
from clearhead.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)

AnyTokenizer = TypeVar("AnyTokenizer", bound=TextTokenizer)

_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def tokenizer_of(folder: Path, model_type: str) -> TextTokenizer:
    """The tokenizer in a model's folder: from tokenizer.json, else from the family's own vocabulary files.

    A multilingual one takes texts in the source language that tokenizer_config.json names, else in the family's
    default, until `for_languages` says otherwise.

    Args:
        folder: where the files are.
        model_type: what config.json says, such as "marian".

    Raises:
        ValueError: no tokenizer, a broken one, a missing file, or one that needs sentencepiece, which is not installed.

    >>> from clearhead.io.hub import resolve_model; from clearhead.tokenizers.auto import tokenizer_of
    >>> tokenizer = tokenizer_of(resolve_model("all-MiniLM-L6-v2"), "bert")
    >>> tokenizer.decode(tokenizer.encode(["The old bridge."])[0].ids)
    'the old bridge.'
    """
    config = special_tokens.read_config(folder)
    own = None
    if not (folder / "tokenizer.json").is_file():
        family = _family(folder, model_type, config, special_tokens.all_special_tokens(config).__contains__)
        own = layout(family, config, folder)
    if own is not None:
        return SentencePieceTokenizer.from_folder(folder, own)
    tokenizer = Tokenizer.from_folder(folder)
    family = _family(folder, model_type, config, lambda token: tokenizer.token_id(token) is not None)
    return tokenizer.speaking(scheme(family, config))


def checked_vocabulary(
    tokenizer: AnyTokenizer, folder: Path, vocab_size: int, target_vocab_size: int | None = None
) -> AnyTokenizer:
    """Return the tokenizer of a folder if the model has an embedding for each of its tokens.

    Args:
        tokenizer: the tokenizer.
        folder: its files.
        vocab_size: rows of the model's embedding.
        target_vocab_size: rows of the target's embedding; as vocab_size where None.

    A special token that no text gets by itself only causes a warning: published checkpoints have such tokens, such as
    `<mask>` of BART models that were fine-tuned for summaries.

    Raises:
        ValueError: a token whose id has no embedding, with the file that names it.
    """
    assert isinstance(tokenizer, MultilingualTokenizer)
    name = next((name for name in _VOCABULARIES if (folder / name).is_file()), "tokenizer_config.json")
    placed = special_tokens.added_token_ids(tokenizer.config)
    around = tokenizer.encode([""])[0].ids  # a tokenizer.json gives these their ids once more
    ends = dict(zip(tokenizer.words(around), around, strict=True))
    vocabulary = dict(tokenizer._vocabulary())
    if isinstance(tokenizer, Tokenizer):
        for number in tokenizer.special_ids:
            (token,) = tokenizer.words([number])
            if number >= vocab_size and token not in ends:
                vocabulary.pop(token, None)
                log.warning(
                    "%s: a text that contains %s is refused: the token has the id %d, and the model has embeddings for "
                    "the ids 0 to %d",
                    *(folder / name, token, number, vocab_size - 1),
                )

    def check(ids: Mapping[str, int], size: int, name: str) -> None:
        token = max(ids, key=ids.__getitem__, default="")
        if ids and ids[token] >= size:
            source = "tokenizer_config.json" if placed.get(token) == ids[token] else name
            raise ValueError(
                f"{folder / source}: token {token!r} has the id {ids[token]}, but the model has embeddings for the ids "
                f"0 to {size - 1}; use the tokenizer that the model was trained with"
            )

    check(vocabulary, vocab_size, name)
    check(ends, vocab_size, name)
    if isinstance(tokenizer, SentencePieceTokenizer):
        own = "target_vocab.json"
        check(tokenizer.written, target_vocab_size or vocab_size, own if own in tokenizer.files else name)
    return tokenizer


def _family(folder: Path, model_type: str, config: dict[str, Any], knows: Callable[[str], bool]) -> str:
    """The model type, told apart where two families share one: by the tokenizer's class, else by its languages."""
    name = _class(folder, config)
    match model_type:
        case "mbart":
            if name in ("MBartTokenizer", "MBart50Tokenizer"):
                return "mbart50" if name == "MBart50Tokenizer" else "mbart"
            return "mbart50" if knows("af_ZA") else "mbart"
        case "m2m_100" | "nllb-moe":
            if name in ("M2M100Tokenizer", "NllbTokenizer"):
                return "nllb" if name == "NllbTokenizer" else "m2m_100"
            without_files = not (folder / "tokenizer.json").is_file() and not (folder / "vocab.json").is_file()
            return "nllb" if knows("eng_Latn") or without_files else "m2m_100"
    return model_type


def _class(folder: Path, config: dict[str, Any]) -> str:
    """The tokenizer's class, as tokenizer_config.json says, else config.json."""
    name = config.get("tokenizer_class")
    if name is None and (folder / "config.json").is_file():
        name = read_json(folder / "config.json").get("tokenizer_class")
    return str(name).removesuffix("Fast")
