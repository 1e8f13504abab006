"""GTE (Zhang et al. 2024, "mGTE"): BERT with rotary positions and gated feed-forwards.

transformers writes the tensor names of the first code (``attention.qkv_proj``), and reads its own names
(``self_attn.q_proj``) too. In config.json files of the first code the model type is "new", and the rotary positions
may have the fixed NTK scaling of the mGTE paper: base θ·s and angles divided by s^(2/d_k).
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.families.bert import BASE_SIZES, KEYS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias
from clearhead.checkpoints.schema.rotary_keys import ROTARY_FIELDS, ROTARY_KEYS, read_rotary, write_rotary

_FIRST_CODE_VALUES = {
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "pack_qkv": True,
    "logn_attention_scale": False,
    "logn_attention_clip1": False,
}
_FIRST_CODE_IGNORED = frozenset({"unpad_inputs", "use_memory_efficient_attention"})


def _translate(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of transformers for a config.json of the first code."""
    if data.get("model_type") != "new":
        return data
    for key, value in _FIRST_CODE_VALUES.items():
        if data.get(key) not in (None, value):
            raise ValueError(
                f"{key}={data[key]!r:.80} changes the result of the model and is not supported; only {value!r} is"
            )
    dropped = _FIRST_CODE_VALUES.keys() | _FIRST_CODE_IGNORED
    result = {key: value for key, value in data.items() if key not in dropped}
    scaling = data.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("type") == "ntk":
        result["rope_scaling"] = None
        result["rope_parameters"] = _fixed_ntk(data, scaling)
    return result


def _fixed_ntk(data: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of fixed NTK scaling.

    Equation: φ(i, j) = i / s^(2/d_k) · (θ s)^(−2j/d_k)
    Source: Zhang et al. 2024, "mGTE", Section 3, in the authors' code
    """
    theta, factor = data.get("rope_theta") or 10_000.0, scaling.get("factor")
    unknown = [key for key in scaling if key not in ("type", "factor") and scaling[key] is not None]
    if unknown:
        raise ValueError(
            f"rope_scaling has {unknown[0]}={scaling[unknown[0]]!r:.80}, which is not supported with type 'ntk'"
        )
    numbers: dict[str, Any] = {"rope_theta": theta, "factor": factor}
    numbers |= {key: data.get(key) for key in ("hidden_size", "num_attention_heads")}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"{key}={value!r:.80}; expected a number above 0")
    factor, width = numbers["factor"], numbers["hidden_size"] // numbers["num_attention_heads"]
    if factor <= 1:  # the first code then leaves the positions as they are
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / width)}


_LAYER, _NATIVE, _OURS = "encoder.layer.{}", "layers.{}", "encoder.layers.{}"
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embedding.tokens.weight",
    "embeddings.token_type_embeddings.weight": "embedding.types.weight",
    **with_bias({"embeddings.LayerNorm": "embedding.norm", "pooler.dense": "pooler.dense"}),
}
_IGNORED = (r"(lm_head|classifier)\..+", r"(embeddings\.position_ids|.*rotary_emb\..+)")

GTE = register(
    EncoderFamily(
        model_type="gte",
        architecture="GteModel",
        also_reads={"model_type": "new"},
        parameter_names=ParameterNames(
            rows={
                **_EMBEDDINGS,
                f"{_LAYER}.mlp.up_gate_proj.weight": f"{_OURS}.feedforward.inner.weight",
                **with_bias(
                    {
                        f"{_LAYER}.attention.qkv_proj": f"{_OURS}.attention.qkv",
                        f"{_LAYER}.attention.o_proj": f"{_OURS}.attention.out",
                        f"{_LAYER}.attn_ln": f"{_OURS}.attention_residual.norm",
                        f"{_LAYER}.mlp.down_proj": f"{_OURS}.feedforward.out",
                        f"{_LAYER}.mlp_ln": f"{_OURS}.feedforward_residual.norm",
                    }
                ),
            },
            swapped=frozenset({f"{_OURS}.feedforward.inner.weight"}),
            ignored=_IGNORED,
        ),
        other_names=(
            ParameterNames(
                rows={
                    **_EMBEDDINGS,
                    (
                        f"{_NATIVE}.mlp.gate_proj.weight",
                        f"{_NATIVE}.mlp.up_proj.weight",
                    ): f"{_OURS}.feedforward.inner.weight",
                    **with_bias(
                        {
                            (
                                f"{_NATIVE}.self_attn.q_proj",
                                f"{_NATIVE}.self_attn.k_proj",
                                f"{_NATIVE}.self_attn.v_proj",
                            ): f"{_OURS}.attention.qkv",
                            f"{_NATIVE}.self_attn.o_proj": f"{_OURS}.attention.out",
                            f"{_NATIVE}.post_attention_layernorm": f"{_OURS}.attention_residual.norm",
                            f"{_NATIVE}.mlp.down_proj": f"{_OURS}.feedforward.out",
                            f"{_NATIVE}.post_mlp_layernorm": f"{_OURS}.feedforward_residual.norm",
                        }
                    ),
                },
                ignored=_IGNORED,
            ),
        ),
        prefix="gte.",
        other_prefixes=("new.",),
        translate=_translate,
        keys=KEYS
        | {
            "max_position_embeddings": ("max_len", 8192),
            "pad_token_id": ("pad_id", 1),
            "type_vocab_size": ("num_token_types", 1),
            "attention_probs_dropout_prob": ("attention_drop_prob", 0.0),
        },
        constants={"positions": "rotary", "embedding_norm": True, "norm_order": "post", "inner_bias": False},
        default_sizes=BASE_SIZES | {"max_len": 8192, "activation": "geglu", "pad_id": 1},
        gated=True,
        allowed_values={key: value for key, value in ENCODER_VALUES.items() if key != "position_embedding_type"},
        optional_modules={"pooler": "pooler.dense.weight"},
        custom=CustomConfig(
            keys=ROTARY_KEYS,
            fields=ROTARY_FIELDS,
            read=lambda data: read_rotary(data, 160_000.0 if data.get("model_type") == "gte" else 10_000.0),
            write=write_rotary,
            derived_defaults=lambda values: {"rotary_theta": 160_000.0},
        ),
        masked_lm=MaskedLMSchema(
            "GteForMaskedLM",
            with_bias({"lm_head.dense": "head.dense", "lm_head.norm": "head.norm"})
            | {"lm_head.decoder.bias": "output.bias"},
            decoder="lm_head.decoder",
            activation="gelu",
        ),
        heads={
            "classification": HeadSchema(
                "GteForSequenceClassification",
                with_bias({"gte.pooler.dense": "dense", "classifier": "out"}),
                activation="tanh",
            )
        },
    )
)
