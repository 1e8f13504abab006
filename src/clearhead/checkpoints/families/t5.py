"""T5 (Raffel et al. 2020) in versions 1.0 and 1.1 (as in Flan-T5), and mT5.

Encoder and decoder each have one table of relative position biases and no absolute positions. Attention scores are not
scaled, norms have no mean and no bias, and heads may be wider than d_model / num_heads. Version 1.0 divides the
decoder's output by √d_model and ties it to the embedding. Later versions do neither, whatever config.json has in
tie_word_embeddings. The dropout after the last norm is omitted.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clearhead.checkpoints.families.bart import EMBEDDINGS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily, register_seq2seq
from clearhead.models.config import Seq2SeqConfig
from clearhead.tokenizers.auto import TokenizerFiles, TokenizerFormat
from clearhead.tokenizers.sentencepiece_vocabulary import SentencePieceVocabulary


def _vocabulary(files: TokenizerFiles) -> SentencePieceVocabulary:
    """Return T5's vocabulary; its last tokens are the sentinels of masked spans, in descending order."""
    count = files.config.get("extra_ids", 100)
    if type(count) is not int or count < 0:
        raise ValueError(
            f"tokenizer_config.json in {files.folder} has extra_ids={count!r:.80}; expected an integer of at least 0"
        )
    sentinels = tuple(f"<extra_id_{number}>" for number in reversed(range(count)))
    return SentencePieceVocabulary("T5Tokenizer", ("spiece.model",), last_tokens=sentinels)


TOKENIZER = TokenizerFormat(_vocabulary)

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
    # the first code created biases of cross-attention that it never used
    return ParameterNames(
        rows=rows, ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
    )


_PLAIN, _GATED = _table(gated=False), _table(gated=True)


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    name = data.get("feed_forward_proj", "gated-gelu" if data["model_type"] == "mt5" else "relu")
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ValueError(f"feed_forward_proj={name!r:.80} is not supported. Use one of: {', '.join(_ACTIVATIONS)}")
    drop_prob = data.get("dropout_rate", 0.1)
    if isinstance(drop_prob, bool) or not isinstance(drop_prob, int | float):
        raise ValueError(f"dropout_rate={drop_prob!r:.80}; expected a number")
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
    symmetric = replace(
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
            f"a T5 checkpoint cannot hold activation={config.activation!r:.80}; it needs one of {list(foreign)}"
        )
    filled = replace(config, head_dim=symmetric.head_dim, activation_drop_prob=symmetric.activation_drop_prob)
    if config.activation_drop_prob not in (None, config.drop_prob) or symmetric != filled:
        raise ValueError(
            "a T5 checkpoint needs one dropout rate, and the same feed-forward width and heads in encoder and decoder"
        )
    return {
        "feed_forward_proj": foreign[config.activation],
        "dropout_rate": config.drop_prob,
        "num_decoder_layers": config.decoder_num_layers,
        "d_kv": symmetric.head_dim,
        "scale_decoder_outputs": config.output_scale,
    }


def _derived_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_drop_prob": values["drop_prob"],
        "decoder_num_layers": values["decoder_num_layers"] or values["num_layers"],
        "output_scale": values["tie_output"],
    }


def _family(
    model_type: str, architecture: str, constants: Mapping[str, Any], default_sizes: Mapping[str, Any]
) -> Seq2SeqFamily:
    return Seq2SeqFamily(
        model_type=model_type,
        architecture=architecture,
        parameter_names=lambda config: _GATED if config.activation == "geglu_tanh" else _PLAIN,
        prefix="",
        default_ids=(0, 1, 0),
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
        constants={
            "positions": "none",
            "max_len": None,
            "embedding_scale": False,
            "norm": "rms",
            "norm_order": "pre",
            "bias": False,
            "scale_scores": False,
            "share_embeddings": True,
            **constants,
        },
        default_sizes=default_sizes,
        custom=CustomConfig(
            keys=frozenset(
                {
                    *("feed_forward_proj", "dropout_rate", "num_decoder_layers", "tie_word_embeddings"),
                    *("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "n_positions", "initializer_factor"),
                }
            ),
            fields=frozenset(
                {
                    *("activation", "drop_prob", "attention_drop_prob", "output_scale", "decoder_num_layers"),
                    *("decoder_ffn_hidden", "decoder_num_heads", "head_dim", "activation_drop_prob"),
                }
            ),
            read=_read,
            write=_write,
            derived_defaults=_derived_defaults,
        ),
        tokenizer=TOKENIZER,
    )


T5 = register_seq2seq(_family("t5", "T5ForConditionalGeneration", {}, {}))
MT5 = register_seq2seq(
    _family(
        "mt5",
        "MT5ForConditionalGeneration",
        {"output_scale": False},
        {"activation": "geglu_tanh", "tie_output": False},
    )
)
