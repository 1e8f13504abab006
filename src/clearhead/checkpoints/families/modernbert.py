"""ModernBERT (Warner et al. 2024): rotary positions, attention windows, gated feed-forwards, pre-norm, no biases.

The attention of the first layer has no norm, because the embedding has one. By default every third layer attends to
the whole text. The others attend to local_attention / 2 tokens on each side and have a separate rotary base. The keys
are ``layer_types`` and ``rope_parameters`` in transformers 5, and ``global_attn_every_n_layers`` and ``*_rope_theta``
in transformers 4. mmBERT (Marone et al. 2025) has the same architecture, the tokenizer of Gemma 2, and one rotary base.
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias
from clearhead.layers.options import Part
from clearhead.models.config import EncoderConfig

_WHOLE, _LOCAL = "full_attention", "sliding_attention"
_BIASES: dict[str, Part] = {"attention_bias": "attention", "mlp_bias": "feedforward", "norm_bias": "norm"}


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    if data.get("hidden_activation", "gelu") != "gelu":
        raise ValueError(f"hidden_activation={data['hidden_activation']!r:.80} is not supported. Use gelu")
    layers = int(data["num_hidden_layers"])
    if layers > 10_000:
        raise ValueError(f"num_hidden_layers={layers}; expected at most 10,000")
    for key in ("local_attention", "global_attn_every_n_layers"):
        value = 1 if data.get(key) is None else data[key]
        if type(value) is not int or value < 0:
            raise ValueError(f"{key}={value!r:.80}; expected an integer of at least 0")
    if data.get("layer_types") is not None and not isinstance(data["layer_types"], list):
        raise ValueError(f"layer_types={data['layer_types']!r:.80}; expected a list")
    every = data.get("global_attn_every_n_layers") or 3
    kinds = data.get("layer_types") or [_LOCAL if number % every else _WHOLE for number in range(layers)]
    unknown = [kind for kind in kinds if kind not in (_WHOLE, _LOCAL)]
    if unknown:
        raise ValueError(f"layer_types has {unknown[0]!r:.80}. Use {_WHOLE} or {_LOCAL}")
    radius = (128 if data.get("local_attention") is None else data["local_attention"]) // 2
    thetas = _thetas(data)
    return {
        "windows": tuple(radius if kind == _LOCAL else None for kind in kinds),
        "rotary_theta": thetas[_WHOLE],
        "local_rotary_theta": thetas[_LOCAL],
        **_read_biases(data),
    }


def _read_biases(data: Mapping[str, Any]) -> dict[str, Any]:
    attention, feedforward, norm = (bool(data.get(key, False)) for key in _BIASES)
    return {
        "bias": norm,
        "attention_bias": None if attention == norm else attention,
        "feedforward_bias": None if feedforward == norm else feedforward,
    }


def _thetas(data: Mapping[str, Any]) -> dict[str, float]:
    parameters = data.get("rope_parameters") or {}
    thetas = {_WHOLE: data.get("global_rope_theta") or 160_000.0, _LOCAL: data.get("local_rope_theta") or 10_000.0}
    if not isinstance(parameters, dict) or not all(isinstance(part, dict | type(None)) for part in parameters.values()):
        raise ValueError(f"rope_parameters={parameters!r:.80}; expected an object for each layer type")
    for kind in thetas:
        part = parameters.get(kind) or {}
        if part.get("rope_type", "default") != "default":
            raise ValueError(f"rope_parameters has rope_type={part['rope_type']!r:.80}. Only default is supported")
        thetas[kind] = part.get("rope_theta", thetas[kind])
        if not isinstance(thetas[kind], int | float) or not 0 < thetas[kind] < 1e30:
            raise ValueError(f"the rotary base of {kind} is {thetas[kind]!r:.40}; expected a number above 0")
        thetas[kind] = float(thetas[kind])
    return thetas


def _write(config: EncoderConfig) -> dict[str, Any]:
    radii = {radius for radius in config.windows if radius is not None}
    if len(radii) > 1:
        raise ValueError(f"a modernbert checkpoint has the same window in all local layers; got {sorted(radii)}")
    local_theta = config.rotary_theta if config.local_rotary_theta is None else config.local_rotary_theta
    windows = config.windows or (None,) * config.num_layers
    kinds = [_WHOLE if radius is None else _LOCAL for radius in windows]
    data: dict[str, Any] = {
        "hidden_activation": "gelu",
        "layer_types": kinds,
        "local_attention": 2 * max(radii, default=64),
        "rope_parameters": {
            _WHOLE: {"rope_type": "default", "rope_theta": config.rotary_theta},
            _LOCAL: {"rope_type": "default", "rope_theta": local_theta},
        },
        "global_rope_theta": config.rotary_theta,
        "local_rope_theta": local_theta,
        **{key: config.layer_options.has_bias(part) for key, part in _BIASES.items()},
        "embedding_dropout": config.drop_prob,
    }
    # transformers 4 reads this key instead of layer_types
    for every in range(1, config.num_layers + 1):
        if kinds == [_LOCAL if number % every else _WHOLE for number in range(config.num_layers)]:
            data["global_attn_every_n_layers"] = every
    return data


def _derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "windows": tuple(64 if number % 3 else None for number in range(values["num_layers"])),
        "rotary_theta": 160_000.0,
        "local_rotary_theta": 10_000.0,
        "bias": False,
    }


_HEAD: Rows = {
    **with_bias({"head.dense": "dense", "head.norm": "norm", "classifier": "out"}),
}

_HEAD_KEYS = ("classifier_activation", "classifier_bias")

MODERNBERT = register(
    EncoderFamily(
        model_type="modernbert",
        architecture="ModernBertModel",
        parameter_names=ParameterNames(
            rows={
                "embeddings.tok_embeddings.weight": "embedding.tokens.weight",
                **with_bias(
                    {
                        "embeddings.norm": "embedding.norm",
                        "layers.{}.attn_norm": "encoder.layers.{}.attention_residual.norm",
                        "layers.{}.attn.Wqkv": "encoder.layers.{}.attention.qkv",
                        "layers.{}.attn.Wo": "encoder.layers.{}.attention.out",
                        "layers.{}.mlp_norm": "encoder.layers.{}.feedforward_residual.norm",
                        "layers.{}.mlp.Wi": "encoder.layers.{}.feedforward.inner",
                        "layers.{}.mlp.Wo": "encoder.layers.{}.feedforward.out",
                        "final_norm": "encoder.norm",
                    }
                ),
            },
            ignored=(r"(head|decoder|classifier)\..+",),
        ),
        prefix="model.",
        keys={
            "vocab_size": ("vocab_size", None),
            "hidden_size": ("d_model", None),
            "intermediate_size": ("ffn_hidden", None),
            "num_attention_heads": ("num_heads", None),
            "num_hidden_layers": ("num_layers", None),
            "max_position_embeddings": ("max_len", 8192),
            "norm_eps": ("eps", 1e-5),
            "mlp_dropout": ("drop_prob", 0.0),
            "attention_dropout": ("attention_drop_prob", 0.0),
            "initializer_range": ("initializer_range", 0.02),
            "pad_token_id": ("pad_id", 50283),
        },
        constants={
            "positions": "rotary",
            "embedding_norm": True,
            "norm_order": "pre",
            "first_norm": False,
            "activation": "geglu",
        },
        default_sizes={"d_model": 768, "ffn_hidden": 1152, "num_heads": 12, "num_layers": 22},
        allowed_values={key: value for key, value in ENCODER_VALUES.items() if key != "position_embedding_type"},
        ignored_keys=frozenset(
            {
                *("classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias"),
                *("position_embedding_type",),
                *("deterministic_flash_attn", "embedding_dropout", "initializer_cutoff_factor", "layer_norm_eps"),
                *("reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction"),
            }
        ),
        custom=CustomConfig(
            keys=frozenset(
                {
                    *_BIASES,
                    *("hidden_activation", "layer_types", "local_attention"),
                    *("rope_parameters", "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"),
                }
            ),
            fields=frozenset(
                {
                    "windows",
                    "rotary_theta",
                    "local_rotary_theta",
                    "bias",
                    "attention_bias",
                    "feedforward_bias",
                    "norm_bias",
                }
            ),
            read=_read,
            write=_write,
            derived_defaults=_derived_defaults,
        ),
        masked_lm=MaskedLMSchema(
            "ModernBertForMaskedLM",
            with_bias({"head.dense": "head.dense", "head.norm": "head.norm"}) | {"decoder.bias": "output.bias"},
            decoder="decoder",
            activation="gelu",
            activation_key="classifier_activation",
            dense_bias_key="classifier_bias",
            output_bias_key="decoder_bias",
            dense_bias=False,
        ),
        heads={
            "classification": HeadSchema(
                "ModernBertForSequenceClassification", _HEAD, "gelu", False, True, *_HEAD_KEYS
            ),
            "span": HeadSchema("ModernBertForQuestionAnswering", _HEAD, "gelu", False, True, *_HEAD_KEYS),
        },
        head_pooling_key="classifier_pooling",
    )
)
