"""What a model is made of, as a value. Configs stop here: layers take plain arguments."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from clearhead.layers.feedforward import Activation
from clearhead.layers.residual import NormOrder

Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
Pooling = Literal["mean", "cls", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
Positions = Literal["sinusoidal", "learned", "rotary", "none"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The plan of an encoder model; the defaults are the base model of "Attention Is All You Need".

    Args:
        vocab_size: number of tokens.
        d_model, ffn_hidden, num_heads, num_layers: sizes, as in `Encoder`.
        max_len: longest input, in tokens.
        positions: "sinusoidal" (added), "learned" (added), "rotary" (in the attention) or "none".
        positions_after_padding: positions are counted over the ids that are not pad_id, from pad_id + 1 (RoBERTa's).
        rotary_theta: base of rotary positions.
        local_rotary_theta: the same in layers with a window; as rotary_theta where None.
        windows: for each layer how far attention reaches to each side, None for the whole text; () for none anywhere.
        relative_buckets: buckets of the learned biases by distance; 0 for none.
        num_token_types: kinds of token types; 0 for none.
        embedding_norm: whether a layer norm follows the summed embeddings.
        activation, norm_order, first_norm, bias, eps: as in `Encoder`.
        drop_prob: dropout of feed-forward, residual branches and embedding.
        attention_drop_prob: dropout of the attention weights.
        layer_drop: as in `Encoder`.
        pooler: whether a tanh layer over the first token follows (BERT's).
        pad_id: the id that fills short rows of a batch.
        initializer_range: standard deviation of BERT's initial weights; None draws Xavier weights and embeddings
            with standard deviation 1 / √d_model.

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
    max_len: int = 5000
    positions: Positions = "sinusoidal"
    positions_after_padding: bool = False
    rotary_theta: float = 10000.0
    local_rotary_theta: float | None = None
    windows: tuple[int | None, ...] = ()
    relative_buckets: int = 0
    num_token_types: int = 0
    embedding_norm: bool = False
    activation: Activation = "relu"
    norm_order: NormOrder = "post"
    first_norm: bool = True
    bias: bool = True
    eps: float = 1e-5
    drop_prob: float = 0.1
    attention_drop_prob: float = 0.0
    layer_drop: float = 0.0
    pooler: bool = False
    pad_id: int = 0
    initializer_range: float | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "ffn_hidden", "num_heads", "num_layers", "max_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.num_token_types < 0 or not self.pad_id >= 0:
            raise ValueError(
                f"num_token_types and pad_id must be at least 0; got {self.num_token_types} and {self.pad_id}"
            )
        if not (0.0 < self.eps < math.inf):
            raise ValueError(f"eps must be above 0; got {self.eps}")
        if self.initializer_range is not None and not (0.0 <= self.initializer_range < math.inf):
            raise ValueError(f"initializer_range must be at least 0; got {self.initializer_range}")
        for name, known in (("activation", get_args(Activation)), ("norm_order", get_args(NormOrder))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}; got {getattr(self, name)!r}")
        if self.positions == "rotary" and self.num_heads and (self.d_model // self.num_heads) % 2:
            raise ValueError("rotary positions turn pairs of columns: d_model / num_heads must be even")
        for name in ("drop_prob", "attention_drop_prob", "layer_drop"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} is a probability from 0 up to, not including, 1; got {getattr(self, name)}")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be divisible by num_heads; got d_model={self.d_model}, num_heads={self.num_heads}"
            )
        if self.positions not in get_args(Positions):
            raise ValueError(f"positions are one of {', '.join(get_args(Positions))}; got {self.positions!r}")
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(f"windows say one radius a layer; got {len(self.windows)} for {self.num_layers} layers")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The plan of a head on an encoder.

    Args:
        labels: names of the outputs, in their order.
        pooling: how a text's hidden states become one, for a classification.
        activation: "tanh", "relu" or "gelu" after a first map of the head; None for no such map.
        dense_bias: whether that map has a bias.
        norm: whether a layer norm follows it.
        drop_prob: dropout before the last map.
        problem: whether exactly one label is right (softmax), each is judged for itself (sigmoid), or the outputs are
            numbers to be taken as they are.

    Raises:
        ValueError: no labels.
    """

    labels: tuple[str, ...]
    pooling: Pooling = "cls"
    activation: Literal["tanh", "relu", "gelu"] | None = None
    dense_bias: bool = True
    norm: bool = False
    drop_prob: float = 0.1
    problem: Problem = "single_label_classification"

    def __post_init__(self) -> None:
        if not self.labels:
            raise ValueError("a head needs one label or more; got none")
