"""A model's folder: which tokenizer its files make."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.checkpoints import directory
from clearhead.text import special
from clearhead.text.interface import TextTokenizer
from clearhead.text.languages import scheme
from clearhead.text.layouts import layout
from clearhead.text.sentencepiece import SentencePieceTokenizer
from clearhead.text.tokenizer import Tokenizer


def tokenizer_of(folder: Path, model_type: str) -> TextTokenizer:
    """The tokenizer in a model's folder: from tokenizer.json, else from the family's own vocabulary files.

    A multilingual one takes texts in the source language that tokenizer_config.json names, else in the family's
    default, until `for_languages` says otherwise.

    Args:
        folder: where the files are.
        model_type: what config.json says, such as "marian".

    Raises:
        ValueError: no tokenizer, a broken one, a missing file, or one that needs sentencepiece, which is not installed.

    >>> from clearhead.checkpoints import directory; from clearhead.text.folder import tokenizer_of
    >>> tokenizer = tokenizer_of(directory.find("all-MiniLM-L6-v2"), "bert")
    >>> tokenizer.decode(tokenizer.encode(["The old bridge."])[0].ids)
    'the old bridge.'
    """
    config = special.read_config(folder)
    own = None
    if not (folder / "tokenizer.json").is_file():
        family = _family(folder, model_type, config, special.listed(config).__contains__)
        own = layout(family, config, folder)
    if own is not None:
        return SentencePieceTokenizer.from_folder(folder, own)
    tokenizer = Tokenizer.from_folder(folder)
    family = _family(folder, model_type, config, lambda token: tokenizer.token_id(token) is not None)
    return tokenizer.speaking(scheme(family, config))


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
        name = directory.read_json(folder / "config.json").get("tokenizer_class")
    return str(name).removesuffix("Fast")
