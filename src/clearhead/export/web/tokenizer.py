"""The tokenizer of a model as JSON, in the format of tokenizer.json, for the page's own tokenizer."""

import json
from typing import Any

from clearhead.export.web.sentencepiece import sentencepiece_json
from clearhead.tokenizers.base import TextTokenizer
from clearhead.tokenizers.sentencepiece import SentencePieceTokenizer
from clearhead.tokenizers.tokenizer import Tokenizer

_NORMALIZERS = frozenset(
    {
        *("NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Lowercase", "StripAccents", "BertNormalizer", "Strip"),
        *("Precompiled", "Sequence"),
    }
)
_PRE_TOKENIZERS = frozenset({"Split", "BertPreTokenizer", "Metaspace", "ByteLevel", "WhitespaceSplit", "Sequence"})
_MODELS = frozenset({"BPE", "WordPiece", "Unigram"})
_DECODERS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "ByteLevel", "WordPiece", "Sequence"})
_POST_PROCESSORS = frozenset({"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"})
_PARTS = {
    "normalizer": ("normalizers", _NORMALIZERS),
    "pre_tokenizer": ("pretokenizers", _PRE_TOKENIZERS),
    "decoder": ("decoders", _DECODERS),
    "post_processor": ("processors", _POST_PROCESSORS),
}
"""Parts of tokenizer.json: the key of the members of a sequence, and the types that the page implements."""


def web_tokenizer(tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return a tokenizer as JSON for the page.

    Raises:
        ValueError: the page does not implement a part of the tokenizer.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return sentencepiece_json(tokenizer) | {
            "splits_special_tokens": False,
            "special_ids": sorted(tokenizer.special_ids),
        }
    assert isinstance(tokenizer, Tokenizer)
    data: dict[str, Any] = json.loads(tokenizer.as_json())
    for name, (members, known) in _PARTS.items():
        unknown = _unknown_type(data.get(name), members, known)
        if unknown is not None:
            raise ValueError(f"the tokenizer has the {name} {unknown}, which a web page does not support")
    kind = data["model"].get("type")
    if kind not in _MODELS:
        raise ValueError(f"the tokenizer's model is {kind}; a web page supports {', '.join(sorted(_MODELS))}")
    data["splits_special_tokens"] = tokenizer.config.get("split_special_tokens") is True
    data["special_ids"] = sorted(tokenizer.special_ids)
    return data


def _unknown_type(part: dict[str, Any] | None, members: str, known: frozenset[str]) -> str | None:
    """Return the first type of a part of tokenizer.json that is not known; None if all are."""
    if part is None:
        return None
    if part["type"] not in known:
        return str(part["type"])
    found = (_unknown_type(one, members, known) for one in part.get(members, ()))
    return next((kind for kind in found if kind is not None), None)
