"""The contents of a sentencepiece model: its pieces and its options, from the protocol buffer."""

import base64
import struct
from collections.abc import Iterator
from typing import Any

from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.sentencepiece import SentencePieceTokenizer

_KINDS = {1: "unigram", 2: "bpe"}
_SPACE = "\u2581"


def sentencepiece_json(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """Return a tokenizer of sentencepiece models as JSON for the page.

    Raises:
        ValueError: the model splits into words or characters.
    """
    pieces, trainer, normalizer = _read_model(tokenizer.files[tokenizer.schema.model_files[0]])
    kind = _KINDS.get(trainer.get(3, 1))
    if kind is None:
        raise ValueError("the sentencepiece model splits into words or characters, which a web page does not support")
    unknown = tokenizer.source_vocabulary[special_tokens.special_token(tokenizer.config, "unk", "<unk>")]
    scheme = tokenizer.scheme
    return {
        "normalizer": {
            "type": "SentencePiece",
            "precompiled_charsmap": base64.b64encode(normalizer.get(2, b"")).decode(),
            "add_dummy_prefix": bool(normalizer.get(3, 1)),
            "remove_extra_whitespaces": bool(normalizer.get(4, 1)),
        },
        "pre_tokenizer": None,
        "model": {
            "type": "SentencePiece",
            "kind": kind,
            "pieces": pieces,
            "ids": dict(tokenizer.source_vocabulary),
            "unk_id": unknown,
            "byte_fallback": bool(trainer.get(35, 0)),
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "Trim"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "before"}}, {"Sequence": {}}, {"SpecialToken": {"id": "after"}}],
            "special_tokens": {"before": {"ids": tokenizer.prefix_ids}, "after": {"ids": tokenizer.suffix_ids}},
        },
        "added_tokens": [
            {"content": token, "id": number, "special": True, "normalized": False}
            for token, number in tokenizer.added_tokens.items()
        ],
        "tokens": [tokenizer.pieces.get(number) for number in range(max(tokenizer.pieces) + 1)],
        "takes_language_code": scheme is not None and not (scheme.forces_target or tokenizer.prefix_ids),
    }


def _read_model(data: bytes) -> tuple[list[tuple[str, float, int]], dict[int, Any], dict[int, Any]]:
    """Return the pieces as (piece, score, type), and the fields of the trainer's and the normalizer's options."""
    pieces: list[tuple[str, float, int]] = []
    options: dict[int, dict[int, Any]] = {2: {}, 3: {}}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0], piece.get(3, 1)))
        elif number in options:
            options[number] = dict(_fields(value))
    return pieces, options[2], options[3]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: its number, and an integer or bytes."""
    position = 0

    def integer() -> int:
        nonlocal position
        result = shift = 0
        while True:
            byte = data[position]
            position += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    while position < len(data):
        key = integer()
        if key & 7 == 0:
            yield key >> 3, integer()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or integer()
        yield key >> 3, data[position : position + size]
        position += size
