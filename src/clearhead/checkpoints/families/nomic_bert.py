"""Nomic BERT (Nussbaum et al. 2024): BERT with rotary positions, SwiGLU, and no biases in attention and feed-forward.

transformers writes the tensor names of the first code (``attn.Wqkv``), and reads its own names (``self_attn.q_proj``)
too. config.json files of the first code have the keys of GPT-2 (``n_embd``).
"""

from collections.abc import Mapping
from typing import Any

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.families.bert import BASE_SIZES, KEYS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias
from clearhead.checkpoints.schema.rotary_keys import ROTARY_FIELDS, ROTARY_KEYS, read_rotary, write_rotary
from clearhead.models.config import EncoderConfig

_RENAMED = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
}
_GATES = {"swiglu": "silu", "geglu": "gelu"}
_FIRST_CODE_VALUES = {
    "prenorm": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "causal": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
}
_FIRST_CODE_IGNORED = frozenset(
    {
        *("activation_function", "dense_seq_output", "embd_pdrop", "fused_bias_fc", "fused_dropout_add_ln"),
        *("last_layer_subset", "max_trained_positions", "pad_vocab_size_multiple", "pad_vocab_to_multiple_of"),
        *("reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj", "use_flash_attn", "use_xentropy"),
    }
)


def _translate(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of transformers for a config.json of the first code."""
    if "n_embd" not in data:
        return data
    activation = data.get("activation_function")
    if not isinstance(activation, str) or activation not in _GATES:
        raise ValueError(f"activation_function={activation!r:.80} is not supported. Use one of: {', '.join(_GATES)}")
    for key, value in _FIRST_CODE_VALUES.items():
        if data.get(key) not in (None, value):
            raise ValueError(
                f"{key}={data[key]!r:.80} changes the result of the model and is not supported; only {value!r} is"
            )
    dropped = _FIRST_CODE_VALUES.keys() | _FIRST_CODE_IGNORED
    return {_RENAMED.get(key, key): value for key, value in data.items() if key not in dropped} | {
        "hidden_act": _GATES[activation]
    }


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    heads, width, head_dim = data["num_attention_heads"], data["hidden_size"], data.get("head_dim")
    if head_dim is not None and (type(head_dim) is not int or head_dim < 1):
        raise ValueError(f"head_dim={head_dim!r:.80}; expected an integer of at least 1")
    return {
        "head_dim": None if head_dim is not None and head_dim * heads == width else head_dim,
        **read_rotary(data, 1000.0),
    }


def _write(config: EncoderConfig) -> dict[str, Any]:
    return {"head_dim": config.head_dim or config.d_model // config.num_heads, **write_rotary(config)}


_LAYER, _OURS = "encoder.layers.{}", "encoder.layers.{}"
_EMBEDDINGS: Rows = {
    "embeddings.word_embeddings.weight": "embedding.tokens.weight",
    "embeddings.token_type_embeddings.weight": "embedding.types.weight",
}
_IGNORED = (r"(cls|classifier)\..+", r"(embeddings\.position_ids|.*rotary_emb\..+)")

NOMIC_BERT = register(
    EncoderFamily(
        model_type="nomic_bert",
        architecture="NomicBertModel",
        parameter_names=ParameterNames(
            rows={
                **_EMBEDDINGS,
                f"{_LAYER}.attn.Wqkv.weight": f"{_OURS}.attention.qkv.weight",
                f"{_LAYER}.attn.out_proj.weight": f"{_OURS}.attention.out.weight",
                (f"{_LAYER}.mlp.fc12.weight", f"{_LAYER}.mlp.fc11.weight"): f"{_OURS}.feedforward.inner.weight",
                f"{_LAYER}.mlp.fc2.weight": f"{_OURS}.feedforward.out.weight",
                **with_bias(
                    {
                        "emb_ln": "embedding.norm",
                        f"{_LAYER}.norm1": f"{_OURS}.attention_residual.norm",
                        f"{_LAYER}.norm2": f"{_OURS}.feedforward_residual.norm",
                        "pooler.dense": "pooler.dense",
                    }
                ),
            },
            ignored=_IGNORED,
        ),
        other_names=(
            ParameterNames(
                rows={
                    **_EMBEDDINGS,
                    (
                        "layers.{}.self_attn.q_proj.weight",
                        "layers.{}.self_attn.k_proj.weight",
                        "layers.{}.self_attn.v_proj.weight",
                    ): f"{_OURS}.attention.qkv.weight",
                    "layers.{}.self_attn.o_proj.weight": f"{_OURS}.attention.out.weight",
                    (
                        "layers.{}.mlp.gate_proj.weight",
                        "layers.{}.mlp.up_proj.weight",
                    ): f"{_OURS}.feedforward.inner.weight",
                    "layers.{}.mlp.down_proj.weight": f"{_OURS}.feedforward.out.weight",
                    **with_bias(
                        {
                            "embeddings.LayerNorm": "embedding.norm",
                            "layers.{}.post_attention_layernorm": f"{_OURS}.attention_residual.norm",
                            "layers.{}.post_mlp_layernorm": f"{_OURS}.feedforward_residual.norm",
                            "pooler.dense": "pooler.dense",
                        }
                    ),
                },
                ignored=_IGNORED,
            ),
        ),
        prefix="nomic_bert.",
        other_prefixes=("bert.",),
        translate=_translate,
        keys=KEYS
        | {
            "max_position_embeddings": ("max_len", 2048),
            "pad_token_id": ("pad_id", 0),
            "hidden_act": ("activation", "silu"),
            "hidden_dropout_prob": ("drop_prob", 0.0),
            "attention_probs_dropout_prob": ("attention_drop_prob", 0.0),
        },
        constants={
            "positions": "rotary",
            "embedding_norm": True,
            "norm_order": "post",
            "bias": False,
            "norm_bias": True,
            "activation_drop_prob": 0.0,
        },
        default_sizes=BASE_SIZES | {"max_len": 2048, "activation": "swiglu"},
        gated=True,
        allowed_values={key: value for key, value in ENCODER_VALUES.items() if key != "position_embedding_type"},
        optional_modules={"pooler": "pooler.dense.weight"},
        custom=CustomConfig(
            keys=frozenset({"head_dim", *ROTARY_KEYS}),
            fields=frozenset({"head_dim", *ROTARY_FIELDS}),
            read=_read,
            write=_write,
            derived_defaults=lambda values: {"rotary_theta": 1000.0},
        ),
        masked_lm=MaskedLMSchema(
            "NomicBertForMaskedLM",
            with_bias(
                {"cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.layer_norm": "head.norm"}
            )
            | {"cls.predictions.bias": "output.bias"},
            decoder="cls.predictions.decoder",
        ),
        heads={
            "classification": HeadSchema(
                "NomicBertForSequenceClassification",
                with_bias({"nomic_bert.pooler.dense": "dense", "classifier": "out"}),
                activation="tanh",
            )
        },
    )
)
