"""BART (Lewis et al. 2019), and the names and keys that all models of fairseq's line share.

Peculiar: two unused rows before the positions; a norm after the embeddings; a bias of the logits, which files may leave
out; a target starts with the end token.
"""

from typing import Any

from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_ONLY, Seq2SeqFamily

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
_LEARNED = ParameterNames(rows=ROWS, left_aside=(r"(encoder|decoder)\.version",))
COMPUTED = ParameterNames(
    rows=ROWS,
    left_aside=(r"(encoder|decoder)\.embed_positions\.(weights?|_float_tensor)", r"(encoder|decoder)\.version"),
)
"""The table of the families whose positions are computed, though a file may hold them."""

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
USUAL = {"d_model": 1024, "ffn_hidden": 4096, "num_heads": 16, "num_layers": 12}
"""The large models' sizes, which their config.json need not say."""

BART = Seq2SeqFamily(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    table=lambda config: _LEARNED,
    prefix="model.",
    ids=(1, 2, 2),
    keys=KEYS,
    usual=USUAL,
    fixed={
        "positions": "learned",
        "position_offset": 2,
        "embedding_norm": True,
        "norm_order": "post",
        "output_bias": True,
    },
    only=SEQ2SEQ_ONLY | {"normalize_embedding": True, "extra_pos_embeddings": 2},
)
MBART = Seq2SeqFamily(
    model_type="mbart",
    architecture="MBartForConditionalGeneration",
    table=lambda config: _LEARNED,
    prefix="model.",
    ids=(1, 2, 2),
    keys=KEYS,
    usual=USUAL,
    fixed=dict(BART.fixed) | {"norm_order": "pre"},
    only=dict(BART.only) | {"normalize_before": True, "add_final_layer_norm": True},
)
"""mBART (Liu et al. 2020): BART with its norms before, and one at the end of each half."""
