"""DeBERTa-v2 and v3 (He et al. 2021): disentangled attention, whose scores also depend on distances.

All layers share a table of distances, with or without a norm. Its projections are those of the contents
(``share_att_key``) or separate ones. Version 3 and the large models of version 2 have no absolute positions. The
large models have a convolution beside the first layer. The masked language model's head has two forms in files,
``cls`` of transformers and ``lm_predictions`` of the authors; both load, and the first is written.
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.families.bert import KEYS, ROWS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.config_values import foreign_activation, our_activation
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias
from clearhead.models.config import EncoderConfig

_SELF = "encoder.layer.{}.attention.self"
_TERMS = {frozenset({"c2p"}): "c2p", frozenset({"p2c"}): "p2c", frozenset({"c2p", "p2c"}): "both"}
_RELATIVE_KEYS = ("relative_attention", "pos_att_type", "max_relative_positions", "position_buckets", "norm_rel_ebd")
_CONVOLUTION_KEYS = ("conv_kernel_size", "conv_groups", "conv_act")
_EQUAL_SIZES = ("embedding_size", "pooler_hidden_size", "attention_head_size")
"""Keys of sizes that follow from others in all published models."""


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("relative_attention", "share_att_key", "position_biased_input"):
        if type(data.get(key, False)) not in (bool, type(None)):
            raise ValueError(f"{key}={data[key]!r:.80}; expected true or false")
    for key in (*_CONVOLUTION_KEYS[:2], "max_relative_positions", "position_buckets"):
        if type(data.get(key, 0)) not in (int, type(None)):
            raise ValueError(f"{key}={data[key]!r:.80}; expected an integer")
    hidden, heads = data.get("hidden_size"), data.get("num_attention_heads")
    expected = {"attention_head_size": hidden // heads if isinstance(hidden, int) and heads else hidden}
    for key in _EQUAL_SIZES:
        if data.get(key) not in (None, expected.get(key, hidden)):
            raise ValueError(f"{key}={data[key]!r:.80} is not supported; only {expected.get(key, hidden)} is")
    positions = "none" if data.get("position_biased_input") is False else "learned"
    return {"positions": positions, **_read_distances(data), **_read_convolution(data)}


def _read_distances(data: Mapping[str, Any]) -> dict[str, Any]:
    kinds = data.get("pos_att_type") or []
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ValueError(f"pos_att_type={kinds!r:.80}; expected a list such as ['p2c', 'c2p']")
    terms = frozenset(kind.strip().lower() for kind in kinds)
    norms = {part.strip() for part in str(data.get("norm_rel_ebd") or "none").lower().split("|")}
    if norms - {"none", "layer_norm"}:
        raise ValueError(f"norm_rel_ebd={data['norm_rel_ebd']!r:.80} is not supported. Use none or layer_norm")
    if not data.get("relative_attention"):
        if terms:
            raise ValueError(f"pos_att_type={kinds!r:.80} needs relative_attention=true")
        return {}
    if terms not in _TERMS:
        raise ValueError(f"pos_att_type={kinds!r:.80} is not supported with relative_attention. Use c2p, p2c or both")
    farthest = data.get("max_relative_positions") or -1
    farthest = data.get("max_position_embeddings", 512) if farthest < 1 else farthest
    buckets = max(data.get("position_buckets") or -1, 0)
    return {
        "distance_terms": _TERMS[terms],
        "distance_buckets": buckets or farthest,
        "distance_max": farthest if buckets else None,
        "distance_norm": "layer_norm" in norms,
        "distance_shared": bool(data.get("share_att_key")),
    }


def _read_convolution(data: Mapping[str, Any]) -> dict[str, Any]:
    if (data.get("conv_kernel_size") or 0) < 1:
        return {}
    return {
        "convolution_width": data["conv_kernel_size"],
        "convolution_groups": data.get("conv_groups") or 1,
        "convolution_activation": "tanh"
        if data.get("conv_act", "tanh") == "tanh"
        else our_activation(data["conv_act"], "conv_act", "config.json"),
    }


def _write(config: EncoderConfig) -> dict[str, Any]:
    if config.positions not in ("learned", "none"):
        raise ValueError(f"a deberta-v2 checkpoint cannot hold positions={config.positions!r:.80}; use learned or none")
    data: dict[str, Any] = {"position_biased_input": config.positions == "learned", "relative_attention": False}
    if config.distance_terms != "none":
        data |= {
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"] if config.distance_terms == "both" else [config.distance_terms],
            "max_relative_positions": config.distance_max or config.distance_buckets,
            "position_buckets": -1 if config.distance_max is None else config.distance_buckets,
            "norm_rel_ebd": "layer_norm" if config.distance_norm else "none",
            "share_att_key": config.distance_shared,
        }
    elif (config.distance_buckets, config.distance_max, config.distance_norm, config.distance_shared) != (
        *(0, None, False, False),
    ):
        raise ValueError('options of distances need distance_terms other than "none"')
    if config.convolution_width:
        kind = config.convolution_activation
        data |= {"conv_kernel_size": config.convolution_width, "conv_groups": config.convolution_groups}
        data["conv_act"] = kind if kind == "tanh" else foreign_activation(kind)
    elif (config.convolution_groups, config.convolution_activation) != (1, "tanh"):
        raise ValueError("options of the convolution need a convolution_width above 0")
    return data


def _derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    if values["distance_terms"] == "none" or values["distance_buckets"]:
        return {}
    # those of version 3, for texts that are long enough
    buckets = min(256, values["max_len"] - 1)
    return {"distance_buckets": buckets, "distance_max": values["max_len"] if buckets > 1 else None}


_HEAD_ROWS = {"dense": "head.dense", "LayerNorm": "head.norm"}

DEBERTA_V2 = register(
    EncoderFamily(
        model_type="deberta-v2",
        architecture="DebertaV2Model",
        parameter_names=ParameterNames(
            rows={
                **{name: ours for name, ours in ROWS.items() if "self" not in str(name) and "pooler" not in str(name)},
                **with_bias(
                    {
                        tuple(f"{_SELF}.{part}_proj" for part in ("query", "key", "value")): (
                            "encoder.layers.{}.attention.qkv"
                        ),
                        f"{_SELF}.pos_key_proj": "encoder.layers.{}.attention.distance_k",
                        f"{_SELF}.pos_query_proj": "encoder.layers.{}.attention.distance_q",
                        "encoder.LayerNorm": "encoder.distances.norm",
                        "encoder.conv.conv": "encoder.convolution.conv",
                        "encoder.conv.LayerNorm": "encoder.convolution.norm",
                    }
                ),
                "encoder.rel_embeddings.weight": "encoder.distances.weight",
            },
            ignored=(
                r"embeddings\.position_(ids|embeddings\.weight)",
                r"encoder\.LayerNorm\..+",
                r"(cls|lm_predictions|mask_predictions)\..+",
                r"(pooler|classifier|qa_outputs)\..+",
            ),
        ),
        prefix="deberta.",
        keys=KEYS
        | {
            "type_vocab_size": ("num_token_types", 0),
            "layer_norm_eps": ("eps", 1e-7),
            "max_position_embeddings": ("max_len", 512),
            "pad_token_id": ("pad_id", 0),
        },
        constants={"embedding_norm": True, "norm_order": "post"},
        allowed_values=ENCODER_VALUES,
        ignored_keys=frozenset({"cls_dropout", "legacy", "pooler_dropout", "pooler_hidden_act"}),
        custom=CustomConfig(
            keys=frozenset(
                {*_RELATIVE_KEYS, *_CONVOLUTION_KEYS, *_EQUAL_SIZES, "share_att_key", "position_biased_input"}
            ),
            fields=frozenset(
                {
                    "positions",
                    *(f"distance_{part}" for part in ("terms", "buckets", "max", "norm", "shared")),
                    *(f"convolution_{part}" for part in ("width", "groups", "activation")),
                }
            ),
            read=_read,
            write=_write,
            derived_defaults=_derived_defaults,
        ),
        default_sizes={
            "d_model": 768,
            "ffn_hidden": 3072,
            "num_heads": 12,
            "num_layers": 12,
            "max_len": 512,
            "positions": "none",
            "distance_terms": "both",
            "distance_norm": True,
            "distance_shared": True,
        },
        masked_lm=MaskedLMSchema(
            "DebertaV2ForMaskedLM",
            with_bias({f"cls.predictions.transform.{name}": ours for name, ours in _HEAD_ROWS.items()})
            | {"cls.predictions.bias": "output.bias"},
            decoder="cls.predictions.decoder",
            others=(
                MaskedLMSchema(
                    "DebertaV2ForMaskedLM",
                    with_bias({f"lm_predictions.lm_head.{name}": ours for name, ours in _HEAD_ROWS.items()})
                    | {"lm_predictions.lm_head.bias": "output.bias"},
                    decoder="lm_predictions.lm_head.decoder",
                ),
            ),
        ),
        heads={
            "classification": HeadSchema(
                "DebertaV2ForSequenceClassification",
                with_bias({"pooler.dense": "dense", "classifier": "out"}),
                activation="gelu",
                activation_key="pooler_hidden_act",
            ),
            "span": HeadSchema("DebertaV2ForQuestionAnswering", with_bias({"qa_outputs": "out"})),
        },
        head_drop_key="cls_dropout",
    )
)
