"""EuroBERT (Boizard et al. 2025): rotary positions, heads that share keys, RMSNorm, SwiGLU, pre-norm, no biases.

The output of the masked language model is a matrix of its own unless tie_word_embeddings is true. A classifier
averages the outputs of all tokens by default ("late").
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias
from clearhead.checkpoints.schema.rotary_keys import ROTARY_FIELDS, ROTARY_KEYS, read_rotary, write_rotary
from clearhead.models.config import EncoderConfig

_BIASES = {"attention_bias": "attention_bias", "mlp_bias": "feedforward_bias"}


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    heads, width = data["num_attention_heads"], data["hidden_size"]
    sizes = {key: data.get(key) for key in ("num_key_value_heads", "head_dim")}
    for key, value in sizes.items():
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{key}={value!r:.80}; expected an integer of at least 1")
    biases = {key: False if data.get(key) is None else data[key] for key in _BIASES}
    for key, bias in biases.items():
        if not isinstance(bias, bool):
            raise ValueError(f"{key}={bias!r:.80}; expected true or false")
    shared, head_dim = sizes["num_key_value_heads"], sizes["head_dim"]
    return {
        "num_kv_heads": None if shared == heads else shared,
        "head_dim": None if head_dim is not None and head_dim * heads == width else head_dim,
        **{_BIASES[key]: bias for key, bias in biases.items()},
        **read_rotary(data, 10_000.0),
    }


def _write(config: EncoderConfig) -> dict[str, Any]:
    return {
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "head_dim": config.head_dim or config.d_model // config.num_heads,
        "attention_bias": config.layer_options.has_bias("attention"),
        "mlp_bias": config.layer_options.has_bias("feedforward"),
        **write_rotary(config),
    }


_ATTENTION = "layers.{}.self_attn"

EUROBERT = register(
    EncoderFamily(
        model_type="eurobert",
        architecture="EuroBertModel",
        parameter_names=ParameterNames(
            rows={
                "embed_tokens.weight": "embedding.tokens.weight",
                "layers.{}.input_layernorm.weight": "encoder.layers.{}.attention_residual.norm.weight",
                "layers.{}.post_attention_layernorm.weight": "encoder.layers.{}.feedforward_residual.norm.weight",
                "norm.weight": "encoder.norm.weight",
                **with_bias(
                    {
                        (
                            f"{_ATTENTION}.q_proj",
                            f"{_ATTENTION}.k_proj",
                            f"{_ATTENTION}.v_proj",
                        ): "encoder.layers.{}.attention.qkv",
                        f"{_ATTENTION}.o_proj": "encoder.layers.{}.attention.out",
                        (
                            "layers.{}.mlp.gate_proj",
                            "layers.{}.mlp.up_proj",
                        ): "encoder.layers.{}.feedforward.inner",
                        "layers.{}.mlp.down_proj": "encoder.layers.{}.feedforward.out",
                    }
                ),
            },
            ignored=(r"(lm_head|dense|classifier)\..+", r"rotary_emb\..+"),
        ),
        prefix="model.",
        keys={
            "vocab_size": ("vocab_size", None),
            "hidden_size": ("d_model", None),
            "intermediate_size": ("ffn_hidden", None),
            "num_attention_heads": ("num_heads", None),
            "num_hidden_layers": ("num_layers", None),
            "max_position_embeddings": ("max_len", 8192),
            "hidden_act": ("activation", "silu"),
            "rms_norm_eps": ("eps", 1e-5),
            "attention_dropout": ("attention_drop_prob", 0.0),
            "initializer_range": ("initializer_range", 0.02),
            "pad_token_id": ("pad_id", 128001),
        },
        constants={
            "positions": "rotary",
            "norm_order": "pre",
            "norm": "rms",
            "bias": False,
            "drop_prob": 0.0,
        },
        default_sizes={"d_model": 768, "ffn_hidden": 3072, "num_heads": 12, "num_layers": 12, "activation": "swiglu"},
        gated=True,
        allowed_values={key: value for key, value in ENCODER_VALUES.items() if key != "position_embedding_type"},
        ignored_keys=frozenset({"classifier_pooling", "clf_pooling", "pretraining_tp"}),
        custom=CustomConfig(
            keys=frozenset({"num_key_value_heads", "head_dim", *_BIASES, *ROTARY_KEYS}),
            fields=frozenset({"num_kv_heads", "head_dim", *_BIASES.values(), *ROTARY_FIELDS}),
            read=_read,
            write=_write,
            derived_defaults=lambda values: {"attention_bias": False, "feedforward_bias": False},
        ),
        masked_lm=MaskedLMSchema(
            "EuroBertForMaskedLM",
            {"lm_head.weight": "output.tokens.weight", "lm_head.bias": "output.bias"},
            decoder="lm_head",
            activation="gelu",
            output_bias_key="mlp_bias",
            output_bias=False,
            has_transform=False,
            tied=False,
        ),
        heads={
            "classification": HeadSchema(
                "EuroBertForSequenceClassification",
                with_bias({"dense": "dense", "classifier": "out"}),
                activation="gelu",
            )
        },
        head_pooling_key="classifier_pooling",
        head_poolings={"late": "late", "bos": "cls", "mean": "mean"},
    )
)
