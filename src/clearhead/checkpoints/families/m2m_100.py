"""M2M100 (Fan et al. 2020) and NLLB (2022), translators between a hundred languages and two hundred.

Peculiar: fairseq's sinusoids, which reach the last wavelength and count positions from the padding id + 1; norms
before, and one at the end of each half; no bias of the logits; a target starts with the end token, then its language.
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.families.bart import COMPUTED, KEYS, USUAL
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_ONLY, Seq2SeqFamily
from clearhead.models.config import Seq2SeqConfig


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    pad = data.get("pad_token_id")
    return {"position_offset": (1 if pad is None else pad) + 1}


def _write(config: Seq2SeqConfig) -> dict[str, Any]:
    if config.position_offset != config.pad_id + 1:
        raise ValueError(
            f"an m2m_100 checkpoint counts positions from pad_id + 1 = {config.pad_id + 1}; "
            f"got {config.position_offset}"
        )
    return {}


def _follows(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"position_offset": values["pad_id"] + 1}


M2M_100 = Seq2SeqFamily(
    model_type="m2m_100",
    architecture="M2M100ForConditionalGeneration",
    table=lambda config: COMPUTED,
    prefix="model.",
    ids=(1, 2, 2),
    keys=KEYS
    | {
        "activation_function": ("activation", "relu"),
        "scale_embedding": ("embedding_scale", True),
        "attention_dropout": ("attention_drop_prob", 0.1),
        "encoder_layerdrop": ("layer_drop", 0.05),
        "decoder_layerdrop": ("decoder_layer_drop", 0.05),
    },
    usual=USUAL,
    fixed={"positions": "fairseq", "norm_order": "pre"},
    only=SEQ2SEQ_ONLY | {"static_position_embeddings": True, "normalize_before": True, "add_final_layer_norm": True},
    peculiar=CustomConfig(frozenset(), frozenset({"position_offset"}), _read, _write, _follows),
)
