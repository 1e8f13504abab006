"""Marian (Junczys-Dowmunt et al. 2018), as the OPUS-MT translators have it.

Peculiar: sinusoids laid out as two halves, computed and not saved; source and target may have vocabularies of their
own; a target starts with the padding token.
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.families.bart import COMPUTED, KEYS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_ONLY, Seq2SeqFamily
from clearhead.models.config import Seq2SeqConfig


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    size = data.get("decoder_vocab_size")
    if size is not None and type(size) is not int:
        raise ValueError(f"decoder_vocab_size={size!r}; a whole number is wanted")
    return {"target_vocab_size": data["vocab_size"] if size is None else size}


def _write(config: Seq2SeqConfig) -> dict[str, Any]:
    return {
        "decoder_vocab_size": config.target_vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings,
    }


MARIAN = Seq2SeqFamily(
    model_type="marian",
    architecture="MarianMTModel",
    table=lambda config: COMPUTED,
    prefix="model.",
    ids=(58100, 0, 58100),
    keys=KEYS,
    # the paper's, and OPUS-MT's: scaled embeddings, ReLU, and Xavier's weights
    usual={"embedding_scale": True, "activation": "relu", "initializer_range": None},
    parts_vocabularies=True,
    fixed={"positions": "concatenated", "norm_order": "post", "output_bias": True},
    only=SEQ2SEQ_ONLY | {"static_position_embeddings": True},
    peculiar=CustomConfig(
        frozenset({"decoder_vocab_size", "share_encoder_decoder_embeddings"}),
        frozenset({"target_vocab_size"}),
        _read,
        _write,
    ),
)
