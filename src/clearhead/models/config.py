"""Configurations of models, as frozen values. Layers take plain arguments instead."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from clearhead.layers.disentangled_attention import ConvolutionOptions, DistanceOptions
from clearhead.layers.feedforward import Activation
from clearhead.layers.norm import Norm
from clearhead.layers.options import LayerOptions
from clearhead.layers.residual import NormOrder
from clearhead.models.labels import check_labels

Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
Pooling = Literal["mean", "cls", "max"]
HeadPooling = Literal["mean", "cls", "max", "late"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
Positions = Literal["sinusoidal", "learned", "rotary", "alibi", "none"]
Seq2SeqPositions = Literal["sinusoidal", "concatenated", "fairseq", "learned", "none"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The configuration of an encoder model; the defaults are the base model of "Attention Is All You Need".

    Args:
        vocab_size: number of tokens.
        d_model, ffn_hidden, num_heads, num_layers: sizes, as in `Encoder`.
        head_dim, num_kv_heads: as in `LayerOptions`.
        layer_groups: number of groups whose layers share weights, in equal parts of the stack (ALBERT); None where
            each layer has its own weights.
        group_layers: number of layers in a group, which the part of the stack repeats.
        max_len: longest input, in tokens.
        positions: "sinusoidal" (added), "learned" (added), "rotary" or "alibi" (in the attention) or "none".
        positions_after_padding: count positions over ids other than pad_id, from pad_id + 1 (RoBERTa).
        rotary_theta: base of rotary positions.
        rotary_factor: rotary positions are divided by it.
        local_rotary_theta: base of rotary positions in layers with a window; rotary_theta where None.
        windows: for each layer its window to each side, None for the whole sequence; () for no windows.
        relative_buckets: buckets of learned position biases; 0 for none.
        distance_terms: scores between contents and distances (DeBERTa): "c2p", "p2c", "both" or "none".
        distance_buckets, distance_max, distance_norm, distance_shared: buckets, max_distance, norm and shared of
            `DistanceOptions`.
        convolution_width: width of the convolution parallel to the first layer (DeBERTa); 0 for none.
        convolution_groups, convolution_activation: as in `ConvolutionOptions`.
        num_token_types: number of token types; 0 for none.
        embedding_dim: width of the embeddings; d_model where None. A linear layer projects any other width to d_model.
        embedding_projection: whether a linear layer also projects embeddings of width d_model (ALBERT).
        embedding_norm: whether a layer norm follows the summed embeddings.
        norm_order, first_norm: as in `Encoder`.
        activation, norm, bias, attention_bias, feedforward_bias, inner_bias, eps: as in `LayerOptions`.
        norm_bias: whether all norms have biases, also those of the embedding and of heads; bias where None.
        drop_prob: dropout of residual branches and, unless set apart below, of feed-forward networks and embeddings.
        attention_drop_prob: dropout of the attention weights.
        activation_drop_prob: dropout inside the feed-forward networks; as drop_prob where None.
        embedding_drop_prob: dropout of the embeddings; as drop_prob where None.
        layer_drop: as in `Encoder`.
        pooler: whether a tanh layer over the first token follows (BERT).
        pad_id: id of padding.
        initializer_range: standard deviation of normal initial weights (BERT); None for Xavier weights, and embeddings
            with standard deviation 1 / √embedding_width.

    Raises:
        ValueError: a size below 1, a probability outside [0, 1), d_model not divisible by num_heads.

    >>> from clearhead import EncoderConfig
    >>> EncoderConfig(vocab_size=1000).d_model
    512
    """

    vocab_size: int
    d_model: int = 512
    ffn_hidden: int = 2048
    num_heads: int = 8
    num_layers: int = 6
    head_dim: int | None = None
    num_kv_heads: int | None = None
    layer_groups: int | None = None
    group_layers: int = 1
    max_len: int = 5000
    positions: Positions = "sinusoidal"
    positions_after_padding: bool = False
    rotary_theta: float = 10000.0
    rotary_factor: float = 1.0
    local_rotary_theta: float | None = None
    windows: tuple[int | None, ...] = ()
    relative_buckets: int = 0
    distance_terms: Literal["none", "c2p", "p2c", "both"] = "none"
    distance_buckets: int = 0
    distance_max: int | None = None
    distance_norm: bool = False
    distance_shared: bool = False
    convolution_width: int = 0
    convolution_groups: int = 1
    convolution_activation: Literal["tanh", "relu", "gelu", "gelu_tanh", "silu"] = "tanh"
    num_token_types: int = 0
    embedding_dim: int | None = None
    embedding_projection: bool = False
    embedding_norm: bool = False
    activation: Activation = "relu"
    norm_order: NormOrder = "post"
    first_norm: bool = True
    norm: Norm = "layer"
    bias: bool = True
    attention_bias: bool | None = None
    feedforward_bias: bool | None = None
    norm_bias: bool | None = None
    inner_bias: bool | None = None
    eps: float = 1e-5
    drop_prob: float = 0.1
    attention_drop_prob: float = 0.0
    activation_drop_prob: float | None = None
    embedding_drop_prob: float | None = None
    layer_drop: float = 0.0
    pooler: bool = False
    pad_id: int = 0
    initializer_range: float | None = None

    def __post_init__(self) -> None:
        _check_at_least(self, 1, "vocab_size", "d_model", "ffn_hidden", "num_heads", "num_layers", "max_len")
        _check_at_least(self, 1, "embedding_dim", "head_dim", "num_kv_heads", "layer_groups", "group_layers")
        _check_at_least(self, 0, "num_token_types", "pad_id", "distance_buckets", "convolution_width")
        _check_at_least(self, 1, "convolution_groups", "distance_max")
        drops = ("drop_prob", "attention_drop_prob", "activation_drop_prob", "embedding_drop_prob", "layer_drop")
        _check_numbers(self, *drops)
        _check_known(self, activation=Activation, norm_order=NormOrder, norm=Norm, positions=Positions)
        if self.pad_id >= self.vocab_size:
            raise ValueError(f"pad_id={self.pad_id} is outside of the vocabulary of {self.vocab_size} tokens")
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be divisible by num_heads; got d_model={self.d_model}, num_heads={self.num_heads}"
            )
        if self.positions == "rotary" and (self.head_dim or self.d_model // self.num_heads) % 2:
            raise ValueError("rotary positions rotate pairs of columns: d_model / num_heads must be even")
        if self.rotary_factor <= 0:
            raise ValueError(f"rotary_factor must be above 0; got {self.rotary_factor}")
        repetitions = self.num_layers // self.group_layers
        if self.num_layers % self.group_layers or (self.layer_groups or 1) > repetitions:
            raise ValueError(
                f"num_layers must be a multiple of group_layers, with at least one repetition for each group; got "
                f"num_layers={self.num_layers}, layer_groups={self.layer_groups}, group_layers={self.group_layers}"
            )
        if self.convolution_options is not None and self.d_model % self.convolution_groups:
            raise ValueError(
                f"d_model={self.d_model} must be divisible by convolution_groups={self.convolution_groups}"
            )
        _ = self.distance_options  # raises for buckets out of range
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(
                f"Expected one window (or None) for each of {self.num_layers} layers, got {len(self.windows)} windows."
            )

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings: embedding_dim, or d_model."""
        return self.d_model if self.embedding_dim is None else self.embedding_dim

    @property
    def layer_order(self) -> tuple[int, ...] | None:
        """The number of each layer's weights in a stack with shared weights; None where each layer has its own.

        With R repetitions of G groups of g layers, repetition r runs the g layers of group ⌊r / (R / G)⌋
        (Lan et al. 2019, "ALBERT", Section 3.1, in the authors' code).
        """
        if self.layer_groups is None:
            return None
        size, repetitions = self.group_layers, self.num_layers // self.group_layers
        # the quotients are rounded as in the authors' code
        groups = [int(number / (repetitions / self.layer_groups)) for number in range(repetitions)]
        return tuple(group * size + layer for group in groups for layer in range(size))

    @property
    def distance_options(self) -> DistanceOptions | None:
        """The options of disentangled attention, or None."""
        if self.distance_terms == "none":
            return None
        return DistanceOptions(
            terms=self.distance_terms,
            buckets=self.distance_buckets,
            max_distance=self.distance_max,
            norm=self.distance_norm,
            shared=self.distance_shared,
        )

    @property
    def convolution_options(self) -> ConvolutionOptions | None:
        """The options of the convolution parallel to the first layer, or None."""
        if not self.convolution_width:
            return None
        return ConvolutionOptions(
            width=self.convolution_width, groups=self.convolution_groups, activation=self.convolution_activation
        )

    @property
    def layer_options(self) -> LayerOptions:
        """The options of all layers."""
        return LayerOptions(
            activation=self.activation,
            attention_drop_prob=self.attention_drop_prob,
            activation_drop_prob=self.activation_drop_prob,
            norm=self.norm,
            eps=self.eps,
            bias=self.bias,
            attention_bias=self.attention_bias,
            feedforward_bias=self.feedforward_bias,
            norm_bias=self.norm_bias,
            inner_bias=self.inner_bias,
            head_dim=self.head_dim,
            num_kv_heads=self.num_kv_heads,
        )


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """The configuration of an encoder–decoder; the defaults are the base model of "Attention Is All You Need".

    Args:
        vocab_size: number of source tokens.
        target_vocab_size: number of target tokens; vocab_size where None.
        d_model, ffn_hidden, num_heads, num_layers: sizes, as in `Encoder`.
        decoder_ffn_hidden, decoder_num_heads, decoder_num_layers: sizes of the decoder, where they differ.
        head_dim: width of a head; d_model / num_heads where None.
        max_len: longest source and target, in tokens; None for no limit.
        positions: "sinusoidal" (the paper's), "concatenated" (sinusoids of Marian), "fairseq" (sinusoids of M2M100),
            "learned", or "none" with relative position biases.
        position_offset: number of the first position; for learned positions, its row.
        relative_buckets, relative_max_distance: learned position biases, as in `Encoder`.
        embedding_scale: whether embeddings are multiplied by √d_model.
        embedding_norm: whether a layer norm follows the summed embeddings.
        norm_order: as in `Encoder`.
        activation, norm, bias, eps: as in `LayerOptions`.
        scale_scores: whether attention scores are divided by √d_k.
        share_embeddings: whether source and target share one embedding.
        tie_output: whether the output projection is the target embedding.
        output_bias: whether logits have a bias.
        output_scale: whether the decoder output is divided by √d_model before the output projection (first T5).
        drop_prob: dropout of residual branches and, unless set apart below, of feed-forward networks and embeddings.
        attention_drop_prob: dropout of the attention weights.
        activation_drop_prob: dropout inside the feed-forward networks; as drop_prob where None.
        embedding_drop_prob: dropout of the embeddings; as drop_prob where None.
        layer_drop, decoder_layer_drop: layer_drop of `Encoder` and `Decoder`.
        pad_id: id of padding.
        start_id: first id of every target.
        eos_ids: ids that end a target.
        initializer_range: standard deviation of normal initial weights; None for Xavier weights, and embeddings with
            standard deviation 1 / √d_model.

    Source embedding, target embedding and output projection are one matrix by default. tie_output=False separates the
    output projection, share_embeddings=False the source embedding.

    Raises:
        ValueError: a size below 1, a probability outside [0, 1), d_model not divisible by num_heads without head_dim,
            one embedding for two vocabularies of different sizes.

    >>> from clearhead import Seq2SeqConfig
    >>> Seq2SeqConfig(vocab_size=1000).d_model
    512
    """

    vocab_size: int
    target_vocab_size: int | None = None
    d_model: int = 512
    ffn_hidden: int = 2048
    num_heads: int = 8
    num_layers: int = 6
    decoder_ffn_hidden: int | None = None
    decoder_num_heads: int | None = None
    decoder_num_layers: int | None = None
    head_dim: int | None = None
    max_len: int | None = 5000
    positions: Seq2SeqPositions = "sinusoidal"
    position_offset: int = 0
    relative_buckets: int = 0
    relative_max_distance: int = 128
    embedding_scale: bool = True
    embedding_norm: bool = False
    activation: Activation = "relu"
    norm_order: NormOrder = "post"
    norm: Norm = "layer"
    bias: bool = True
    eps: float = 1e-5
    scale_scores: bool = True
    share_embeddings: bool = True
    tie_output: bool = True
    output_bias: bool = False
    output_scale: bool = False
    drop_prob: float = 0.1
    attention_drop_prob: float = 0.0
    activation_drop_prob: float | None = None
    embedding_drop_prob: float | None = None
    layer_drop: float = 0.0
    decoder_layer_drop: float = 0.0
    pad_id: int = 0
    start_id: int = 0
    eos_ids: tuple[int, ...] = (1,)
    initializer_range: float | None = None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "target_vocab_size", "d_model", "ffn_hidden", "num_heads", "num_layers", "head_dim")
        decoder = ("decoder_ffn_hidden", "decoder_num_heads", "decoder_num_layers")
        _check_at_least(self, 1, *sizes, *decoder, "max_len")
        _check_at_least(self, 0, "pad_id", "start_id", "position_offset", "relative_buckets")
        drops = ("drop_prob", "attention_drop_prob", "activation_drop_prob", "embedding_drop_prob")
        _check_numbers(self, *drops, "layer_drop", "decoder_layer_drop")
        _check_known(self, activation=Activation, norm_order=NormOrder, norm=Norm, positions=Seq2SeqPositions)
        for heads in (self.num_heads, self.decoder_num_heads or 1):
            if self.head_dim is None and self.d_model % heads:
                raise ValueError(
                    f"d_model must be divisible by num_heads unless head_dim is set; got d_model={self.d_model}, "
                    f"num_heads={heads}"
                )
        if self.share_embeddings and self.target_vocab_size not in (None, self.vocab_size):
            raise ValueError(
                f"source and target have {self.vocab_size} and {self.target_vocab_size} tokens, and cannot share one "
                "embedding; share_embeddings=False gives each its own"
            )
        if self.positions != "none" and self.max_len is None:
            raise ValueError(f"{self.positions} positions need a max_len")
        target = self.target_vocab_size or self.vocab_size
        if any(not 0 <= eos < target for eos in self.eos_ids):
            raise ValueError(f"eos_ids must be in the target's vocabulary, 0 to {target - 1}; got {self.eos_ids}")
        for name, number, size in (
            ("pad_id", self.pad_id, min(self.vocab_size, target)),
            ("start_id", self.start_id, target),
        ):
            if number >= size:
                raise ValueError(f"{name}={number} is outside of the vocabulary of {size} tokens")

    @property
    def layer_options(self) -> LayerOptions:
        """The options of all layers of encoder and decoder."""
        return LayerOptions(
            activation=self.activation,
            attention_drop_prob=self.attention_drop_prob,
            activation_drop_prob=self.activation_drop_prob,
            norm=self.norm,
            eps=self.eps,
            bias=self.bias,
            head_dim=self.head_dim,
            scale=None if self.scale_scores else 1.0,
        )


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The configuration of a head on an encoder.

    Args:
        labels: names of the outputs, in order.
        pooling: how to pool hidden states for classification; "late" averages the outputs of all tokens instead.
        activation: "tanh", "relu" or "gelu" after a first linear layer; None for no such layer.
        dense_bias: whether that layer has a bias.
        norm: whether a layer norm follows it.
        drop_prob: dropout before the last linear layer.
        problem: exactly one label (softmax), independent labels (sigmoid), or regression on the raw outputs.

    Raises:
        ValueError: no labels, equal labels, or a label with line breaks or other control characters.
    """

    labels: tuple[str, ...]
    pooling: HeadPooling = "cls"
    activation: Literal["tanh", "relu", "gelu"] | None = None
    dense_bias: bool = True
    norm: bool = False
    drop_prob: float = 0.1
    problem: Problem = "single_label_classification"

    def __post_init__(self) -> None:
        check_labels(self.labels)


def _check_at_least(config: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")


def _check_numbers(config: Any, *probabilities: str) -> None:
    for name in probabilities:
        value = getattr(config, name)
        if value is not None and not 0.0 <= value < 1.0:
            raise ValueError(f"{name} is a probability from 0 up to, not including, 1; got {value}")
    if not (0.0 < config.eps < math.inf):
        raise ValueError(f"eps must be above 0; got {config.eps}")
    if config.initializer_range is not None and not (0.0 <= config.initializer_range < math.inf):
        raise ValueError(f"initializer_range must be at least 0; got {config.initializer_range}")


def _check_known(config: object, **kinds: Any) -> None:
    for name, kind in kinds.items():
        if getattr(config, name) not in get_args(kind):
            raise ValueError(f"{name} is one of {', '.join(get_args(kind))}; got {getattr(config, name)!r}")
