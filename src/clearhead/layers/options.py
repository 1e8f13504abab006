"""Options that encoder and decoder layers share, and the parts that are built from them."""

from dataclasses import dataclass
from typing import Literal

from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.layers.feedforward import Activation, GatedFeedForward, PositionwiseFeedForward, feedforward
from clearhead.layers.norm import LayerNorm, Norm, RMSNorm, get_norm
from clearhead.layers.residual import NormOrder, PostNorm, PreNorm, residual

Part = Literal["attention", "feedforward", "norm"]
"""A part of a layer that has its own bias option."""


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Options of encoder and decoder layers beyond sizes, dropout and norm order.

    Args:
        activation: "relu", "gelu", "gelu_tanh", "silu", or the gated "reglu", "geglu", "geglu_tanh" or "swiglu".
        attention_drop_prob: dropout of the attention weights.
        activation_drop_prob: dropout inside the feed-forward network; the layer's drop_prob where None.
        norm: "layer" or "rms".
        eps: ε of the norms.
        bias: whether linear layers and norms have biases.
        attention_bias, feedforward_bias, norm_bias: the same for one part of the layer; bias where None.
        inner_bias: whether the first layer of a gated feed-forward has a bias; feedforward_bias where None.
        head_dim: width of a head; d_model / num_heads where None.
        num_kv_heads: heads of keys and values in self-attention; num_heads where None.
        scale: factor of Q Kᵀ; 1 / √d_k where None.

    >>> from clearhead import EncoderLayer, LayerOptions
    >>> EncoderLayer(512, 2048, 8, 0.1, options=LayerOptions(activation="gelu")).feedforward.activation
    GELU(approximate='none')
    """

    activation: Activation = "relu"
    attention_drop_prob: float = 0.0
    activation_drop_prob: float | None = None
    norm: Norm = "layer"
    eps: float = 1e-5
    bias: bool = True
    attention_bias: bool | None = None
    feedforward_bias: bool | None = None
    norm_bias: bool | None = None
    inner_bias: bool | None = None
    head_dim: int | None = None
    num_kv_heads: int | None = None
    scale: float | None = None

    def build_self_attention(
        self,
        d_model: int,
        num_heads: int,
        *,
        rotary_theta: float | None = None,
        rotary_factor: float = 1.0,
        window: int | None = None,
    ) -> MultiHeadAttention:
        """Build self-attention; arguments as in `MultiHeadAttention`."""
        return MultiHeadAttention(
            d_model,
            num_heads,
            drop_prob=self.attention_drop_prob,
            bias=self.has_bias("attention"),
            head_dim=self.head_dim,
            num_kv_heads=self.num_kv_heads,
            scale=self.scale,
            rotary_theta=rotary_theta,
            rotary_factor=rotary_factor,
            window=window,
        )

    def build_cross_attention(self, d_model: int, num_heads: int) -> CrossAttention:
        """Build cross-attention; arguments as in `CrossAttention`."""
        return CrossAttention(
            d_model,
            num_heads,
            drop_prob=self.attention_drop_prob,
            bias=self.has_bias("attention"),
            head_dim=self.head_dim,
            scale=self.scale,
        )

    def build_feedforward(
        self, d_model: int, ffn_hidden: int, drop_prob: float
    ) -> PositionwiseFeedForward | GatedFeedForward:
        """Build a feed-forward network; its dropout is drop_prob unless activation_drop_prob is set."""
        inner_drop_prob = drop_prob if self.activation_drop_prob is None else self.activation_drop_prob
        return feedforward(
            d_model,
            ffn_hidden,
            inner_drop_prob,
            activation=self.activation,
            bias=self.has_bias("feedforward"),
            inner_bias=self.inner_bias,
        )

    def build_residual(self, norm_order: NormOrder, d_model: int, drop_prob: float) -> PostNorm | PreNorm:
        """Build a residual connection with its norm."""
        return residual(norm_order, d_model, drop_prob, eps=self.eps, bias=self.has_bias("norm"), norm=self.norm)

    def build_norm(self, d_model: int) -> LayerNorm | RMSNorm:
        """Build a norm over the width d_model."""
        return get_norm(self.norm, d_model, self.eps, bias=self.has_bias("norm"))

    def has_bias(self, part: Part) -> bool:
        """Return whether a part of the layer has biases: its own option, or `bias`."""
        own = {"attention": self.attention_bias, "feedforward": self.feedforward_bias, "norm": self.norm_bias}[part]
        return self.bias if own is None else own


DEFAULT_OPTIONS = LayerOptions()
"""The options of the paper's layers."""
