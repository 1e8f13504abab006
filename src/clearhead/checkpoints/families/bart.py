"""BART (Lewis et al. 2019), with the names and keys that all families from fairseq share.

The position table starts with two unused rows, and the embeddings are normalized. The logits have a bias, which a file
may omit. Targets start with the end token.
"""

from typing import Any

from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_VALUES, Seq2SeqFamily, register_seq2seq

_HALVES: Rows = {
    f"{half}.{foreign}": f"{half}.{ours}"
    for half in ("encoder", "decoder")
    for foreign, ours in {
        "layers.{}.self_attn.out_proj": "layers.{}.attention.out",
        "layers.{}.self_attn_layer_norm": "layers.{}.attention_residual.norm",
        "layers.{}.fc1": "layers.{}.feedforward.inner",
        "layers.{}.fc2": "layers.{}.feedforward.out",
        "layers.{}.final_layer_norm": "layers.{}.feedforward_residual.norm",
        "layer_norm": "norm",
    }.items()
}
_SELF = tuple(f"layers.{{}}.self_attn.{part}_proj" for part in "qkv")
_CROSS = "decoder.layers.{}.encoder_attn"
EMBEDDINGS: Rows = {
    f"{name}.tokens.weight": f"{name}.tokens.weight" for name in ("source_embedding", "target_embedding", "output")
}
ROWS: Rows = {
    **EMBEDDINGS,
    **with_bias(
        {
            **_HALVES,
            tuple(f"encoder.{name}" for name in _SELF): "encoder.layers.{}.attention.qkv",
            tuple(f"decoder.{name}" for name in _SELF): "decoder.layers.{}.attention.qkv",
            f"{_CROSS}.q_proj": "decoder.layers.{}.cross_attention.q",
            (f"{_CROSS}.k_proj", f"{_CROSS}.v_proj"): "decoder.layers.{}.cross_attention.kv",
            f"{_CROSS}.out_proj": "decoder.layers.{}.cross_attention.out",
            "decoder.layers.{}.encoder_attn_layer_norm": "decoder.layers.{}.cross_attention_residual.norm",
            "encoder.layernorm_embedding": "source_embedding.norm",
            "decoder.layernorm_embedding": "target_embedding.norm",
        }
    ),
    "encoder.embed_positions.weight": "source_embedding.positions.weight",
    "decoder.embed_positions.weight": "target_embedding.positions.weight",
    "final_logits_bias": "output.bias",
}
LEARNED_POSITIONS = ParameterNames(rows=ROWS, ignored=(r"(encoder|decoder)\.version",))
COMPUTED_POSITIONS = ParameterNames(
    rows=ROWS,
    ignored=(r"(encoder|decoder)\.embed_positions\.(weights?|_float_tensor)", r"(encoder|decoder)\.version"),
)
"""Names of families with sinusoidal positions, which a file may contain."""

KEYS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", None),
    "d_model": ("d_model", None),
    "encoder_ffn_dim": ("ffn_hidden", None),
    "decoder_ffn_dim": ("decoder_ffn_hidden", None),
    "encoder_attention_heads": ("num_heads", None),
    "decoder_attention_heads": ("decoder_num_heads", None),
    "encoder_layers": ("num_layers", None),
    "decoder_layers": ("decoder_num_layers", None),
    "max_position_embeddings": ("max_len", 1024),
    "activation_function": ("activation", "gelu"),
    "scale_embedding": ("embedding_scale", False),
    "dropout": ("drop_prob", 0.1),
    "attention_dropout": ("attention_drop_prob", 0.0),
    "activation_dropout": ("activation_drop_prob", 0.0),
    "encoder_layerdrop": ("layer_drop", 0.0),
    "decoder_layerdrop": ("decoder_layer_drop", 0.0),
    "init_std": ("initializer_range", 0.02),
}
LARGE_SIZES = {"d_model": 1024, "ffn_hidden": 4096, "num_heads": 16, "num_layers": 12}
"""Sizes of the large models: defaults of a new model."""

BART = register_seq2seq(
    Seq2SeqFamily(
        model_type="bart",
        architecture="BartForConditionalGeneration",
        parameter_names=lambda config: LEARNED_POSITIONS,
        prefix="model.",
        default_ids=(1, 2, 2),
        keys=KEYS,
        default_sizes=LARGE_SIZES,
        constants={
            "positions": "learned",
            "position_offset": 2,
            "embedding_norm": True,
            "norm_order": "post",
            "output_bias": True,
        },
        allowed_values=SEQ2SEQ_VALUES | {"normalize_embedding": True, "extra_pos_embeddings": 2},
    )
)
