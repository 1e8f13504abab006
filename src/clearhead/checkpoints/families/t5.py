"""T5 (Raffel et al. 2020), its versions 1.0 and 1.1 (Flan-T5's), and mT5.

Peculiar: no positions but one table of biases by distance for each half; scores are not scaled; norms without mean and
bias; heads may be wider than d_model / num_heads; version 1.0 divides the decoder's output by √d_model and ties it to
the embedding, later ones do neither, whatever their config.json says of ties. The dropout after the last norm is left
out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clearhead.checkpoints.families.bart import EMBEDDINGS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.models.config import Seq2SeqConfig

_ACTIVATIONS = {"relu": "relu", "gated-gelu": "geglu_tanh"}


def _half(half: str, feedforward: int) -> dict[str | tuple[str, ...], str]:
    block, ours = f"{half}.block.{{}}.layer", f"{half}.layers.{{}}"
    own = tuple(f"{block}.0.SelfAttention.{part}.weight" for part in "qkv")
    return {
        own: f"{ours}.attention.qkv.weight",
        f"{block}.0.SelfAttention.o.weight": f"{ours}.attention.out.weight",
        f"{block}.0.layer_norm.weight": f"{ours}.attention_residual.norm.weight",
        f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight": f"{half}.relative_bias.weight",
        f"{block}.{feedforward}.DenseReluDense.wo.weight": f"{ours}.feedforward.out.weight",
        f"{block}.{feedforward}.layer_norm.weight": f"{ours}.feedforward_residual.norm.weight",
        f"{half}.final_layer_norm.weight": f"{half}.norm.weight",
    }


def _table(gated: bool) -> ParameterNames:
    cross = "decoder.block.{}.layer.1"
    rows: dict[str | tuple[str, ...], str] = {
        **EMBEDDINGS,
        **_half("encoder", 1),
        **_half("decoder", 2),
        f"{cross}.EncDecAttention.q.weight": "decoder.layers.{}.cross_attention.q.weight",
        tuple(f"{cross}.EncDecAttention.{part}.weight" for part in "kv"): "decoder.layers.{}.cross_attention.kv.weight",
        f"{cross}.EncDecAttention.o.weight": "decoder.layers.{}.cross_attention.out.weight",
        f"{cross}.layer_norm.weight": "decoder.layers.{}.cross_attention_residual.norm.weight",
    }
    for half, number in (("encoder", 1), ("decoder", 2)):
        dense = f"{half}.block.{{}}.layer.{number}.DenseReluDense"
        inner = (f"{dense}.wi_0.weight", f"{dense}.wi_1.weight") if gated else f"{dense}.wi.weight"
        rows[inner] = f"{half}.layers.{{}}.feedforward.inner.weight"
    # the first code gave cross-attention biases that it never used
    return ParameterNames(
        rows=rows, left_aside=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
    )


_PLAIN, _GATED = _table(gated=False), _table(gated=True)


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    name = data.get("feed_forward_proj", "gated-gelu" if data["model_type"] == "mt5" else "relu")
    if name not in _ACTIVATIONS:
        raise ValueError(f"feed_forward_proj={name!r} is not supported; these are: {', '.join(_ACTIVATIONS)}")
    drop_prob = data.get("dropout_rate", 0.1)
    if isinstance(drop_prob, bool) or not isinstance(drop_prob, int | float):
        raise ValueError(f"dropout_rate={drop_prob!r}; a number is wanted")
    first = data["model_type"] == "t5" and data.get(
        "scale_decoder_outputs", data.get("tie_word_embeddings") is not False
    )
    layers = data.get("num_decoder_layers")
    return {
        "activation": _ACTIVATIONS[name],
        "drop_prob": drop_prob,
        "attention_drop_prob": drop_prob,
        "output_scale": bool(first),
        "decoder_num_layers": data["num_layers"] if layers is None else layers,
    }


def _write(config: Seq2SeqConfig) -> dict[str, Any]:
    foreign = {ours: name for name, ours in _ACTIVATIONS.items()}
    alike = replace(
        config,
        attention_drop_prob=config.drop_prob,
        activation_drop_prob=config.drop_prob,
        decoder_ffn_hidden=config.ffn_hidden,
        decoder_num_heads=config.num_heads,
        target_vocab_size=config.vocab_size,
        head_dim=config.head_dim or config.d_model // config.num_heads,
    )
    if config.activation not in foreign:
        raise ValueError(
            f"a T5 checkpoint cannot hold activation={config.activation!r}; it needs one of {list(foreign)}"
        )
    given = replace(config, head_dim=alike.head_dim, activation_drop_prob=alike.activation_drop_prob)
    if config.activation_drop_prob not in (None, config.drop_prob) or alike != given:
        raise ValueError("a T5 checkpoint has one dropout, and the same feed-forward width and heads in both halves")
    return {
        "feed_forward_proj": foreign[config.activation],
        "dropout_rate": config.drop_prob,
        "num_decoder_layers": config.decoder_num_layers,
        "d_kv": alike.head_dim,
        "scale_decoder_outputs": config.output_scale,
    }


def _follows(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_drop_prob": values["drop_prob"],
        "decoder_num_layers": values["decoder_num_layers"] or values["num_layers"],
        "output_scale": values["tie_output"],
    }


def _family(model_type: str, architecture: str, fixed: Mapping[str, Any], usual: Mapping[str, Any]) -> Seq2SeqFamily:
    return Seq2SeqFamily(
        model_type=model_type,
        architecture=architecture,
        table=lambda config: _GATED if config.activation == "geglu_tanh" else _PLAIN,
        prefix="",
        ids=(0, 1, 0),
        keys={
            "vocab_size": ("vocab_size", None),
            "d_model": ("d_model", None),
            "d_ff": ("ffn_hidden", None),
            "d_kv": ("head_dim", None),
            "num_heads": ("num_heads", None),
            "num_layers": ("num_layers", None),
            "relative_attention_num_buckets": ("relative_buckets", 32),
            "relative_attention_max_distance": ("relative_max_distance", 128),
            "layer_norm_epsilon": ("eps", 1e-6),
        },
        fixed={
            "positions": "none",
            "max_len": None,
            "embedding_scale": False,
            "norm": "rms",
            "norm_order": "pre",
            "bias": False,
            "scale_scores": False,
            "share_embeddings": True,
            **fixed,
        },
        usual=usual,
        peculiar=CustomConfig(
            keys=frozenset(
                {
                    *("feed_forward_proj", "dropout_rate", "num_decoder_layers", "tie_word_embeddings"),
                    *("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "n_positions", "initializer_factor"),
                }
            ),
            names=frozenset(
                {
                    *("activation", "drop_prob", "attention_drop_prob", "output_scale", "decoder_num_layers"),
                    *("decoder_ffn_hidden", "decoder_num_heads", "head_dim", "activation_drop_prob"),
                }
            ),
            read=_read,
            write=_write,
            follows=_follows,
        ),
    )


T5 = _family("t5", "T5ForConditionalGeneration", {}, {})
MT5 = _family(
    "mt5", "MT5ForConditionalGeneration", {"output_scale": False}, {"activation": "geglu_tanh", "tie_output": False}
)
