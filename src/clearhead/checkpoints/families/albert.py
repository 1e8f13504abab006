"""ALBERT (Lan et al. 2019): BERT with narrow embeddings, and layers that share their weights.

A linear layer always projects the embeddings to the width of the layers. The stack has num_hidden_layers repetitions
of groups of inner_group_num layers. Each of the num_hidden_groups groups serves an equal part of the repetitions; our
num_layers counts all layers, num_hidden_layers × inner_group_num.
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.families.bert import CONSTANTS, KEYS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias
from clearhead.models.config import EncoderConfig

_LAYER = "encoder.albert_layer_groups.{}.albert_layers.{}"
_SIZES = ("num_hidden_layers", "num_hidden_groups", "inner_group_num")


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    layers, groups, size = (1 if data.get(key) is None else data[key] for key in _SIZES)
    if data.get("num_hidden_layers") is None:
        raise ValueError("num_hidden_layers is missing")
    for key, value in zip(_SIZES, (layers, groups, size), strict=True):
        if type(value) is not int or not 1 <= value <= 10_000:
            raise ValueError(f"{key}={value!r:.80}; expected an integer from 1 to 10,000")
    if groups > layers:
        raise ValueError(f"num_hidden_groups={groups} exceeds num_hidden_layers={layers}; some groups would never run")
    return {"num_layers": layers * size, "layer_groups": groups, "group_layers": size}


def _write(config: EncoderConfig) -> dict[str, Any]:
    if config.layer_groups is None:
        raise ValueError("the layers of an albert checkpoint share their weights; set layer_groups to 1 or more")
    values = config.num_layers // config.group_layers, config.layer_groups, config.group_layers
    return dict(zip(_SIZES, values, strict=True))


ALBERT = register(
    EncoderFamily(
        model_type="albert",
        architecture="AlbertModel",
        parameter_names=ParameterNames(
            rows={
                "embeddings.word_embeddings.weight": "embedding.tokens.weight",
                "embeddings.position_embeddings.weight": "embedding.positions.weight",
                "embeddings.token_type_embeddings.weight": "embedding.types.weight",
                **with_bias(
                    {
                        "embeddings.LayerNorm": "embedding.norm",
                        "encoder.embedding_hidden_mapping_in": "embedding.projection",
                        (
                            f"{_LAYER}.attention.query",
                            f"{_LAYER}.attention.key",
                            f"{_LAYER}.attention.value",
                        ): "encoder.layers.{}.attention.qkv",
                        f"{_LAYER}.attention.dense": "encoder.layers.{}.attention.out",
                        f"{_LAYER}.attention.LayerNorm": "encoder.layers.{}.attention_residual.norm",
                        f"{_LAYER}.ffn": "encoder.layers.{}.feedforward.inner",
                        f"{_LAYER}.ffn_output": "encoder.layers.{}.feedforward.out",
                        f"{_LAYER}.full_layer_layer_norm": "encoder.layers.{}.feedforward_residual.norm",
                        "pooler": "pooler.dense",
                    }
                ),
            },
            ignored=(
                r"embeddings\.position_ids",
                r"predictions\..+",
                r"sop_classifier\..+",
                r"(classifier|qa_outputs)\..+",
            ),
        ),
        prefix="albert.",
        keys={key: value for key, value in KEYS.items() if key != "num_hidden_layers"}
        | {
            "embedding_size": ("embedding_dim", 128),
            "hidden_act": ("activation", "gelu_new"),
            "hidden_dropout_prob": ("drop_prob", 0.0),
            "attention_probs_dropout_prob": ("attention_drop_prob", 0.0),
            "max_position_embeddings": ("max_len", 512),
            "pad_token_id": ("pad_id", 0),
        },
        constants=CONSTANTS | {"embedding_projection": True},
        allowed_values=ENCODER_VALUES
        | {"down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0},
        ignored_keys=frozenset({"classifier_dropout_prob"}),
        custom=CustomConfig(
            keys=frozenset(_SIZES),
            fields=frozenset({"num_layers", "layer_groups", "group_layers"}),
            read=_read,
            write=_write,
            derived_defaults=lambda values: {"layer_groups": 1},
        ),
        default_sizes={
            "d_model": 768,
            "ffn_hidden": 3072,
            "num_heads": 12,
            "num_layers": 12,
            "max_len": 512,
            "activation": "gelu_tanh",
        },
        optional_modules={"pooler": "pooler.weight"},
        masked_lm=MaskedLMSchema(
            "AlbertForMaskedLM",
            with_bias({"predictions.dense": "head.dense", "predictions.LayerNorm": "head.norm"})
            | {"predictions.bias": "output.bias"},
            decoder="predictions.decoder",
        ),
        heads={
            "classification": HeadSchema(
                "AlbertForSequenceClassification",
                with_bias({"albert.pooler": "dense", "classifier": "out"}),
                activation="tanh",
            ),
            "span": HeadSchema("AlbertForQuestionAnswering", with_bias({"qa_outputs": "out"})),
        },
        head_drop_key="classifier_dropout_prob",
    )
)
