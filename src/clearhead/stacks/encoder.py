"""The encoder: the left half of Figure 1."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.layers.attention import MultiHeadAttention, RelativePositionBias
from clearhead.layers.feedforward import Activation, feedforward
from clearhead.layers.norm import Norm, get_norm
from clearhead.layers.residual import NormOrder, residual


class EncoderLayer(nn.Module):
    """One block of the encoder: self-attention, then the feed-forward network, each with its residual and norm.

    Equation: Z₁ = LN(X + MHA(X)), Z₂ = LN(Z₁ + FFN(Z₁))
    Source: Section 3.1 of "Attention Is All You Need"; with norm_order="pre", Z₁ = X + MHA(LN(X)), and so on

    Args:
        d_model: width D of x.
        ffn_hidden: width F inside the feed-forward network.
        num_heads: attention heads H.
        drop_prob: dropout in the feed-forward network and on the residual branches.
        norm_order: "post" (the paper's) or "pre".
        activation: "relu", "gelu", "gelu_tanh", "silu", or gated "geglu" or "geglu_tanh".
        attention_drop_prob: dropout of the attention weights.
        activation_drop_prob: dropout inside the feed-forward network; as drop_prob where None.
        norm: "layer" or "rms".
        eps: of the norms.
        bias: whether linear maps and norms have biases.
        head_dim: width of a head; d_model / num_heads where None.
        scale: what the products of queries and keys are multiplied with; 1 / √d_k where None.
        rotary_theta: base of rotary positions in the attention; None for none.
        window: how far attention reaches to each side; None for the whole text.

    Weights are drawn as `torch.nn.TransformerEncoderLayer` draws them.

    >>> import torch; from clearhead import EncoderLayer
    >>> EncoderLayer(512, 2048, 8, 0.1)(torch.rand(2, 10, 512)).shape
    torch.Size([2, 10, 512])
    """

    def __init__(
        self,
        d_model: int,
        ffn_hidden: int,
        num_heads: int,
        drop_prob: float,
        *,
        norm_order: NormOrder = "post",
        activation: Activation = "relu",
        attention_drop_prob: float = 0.0,
        activation_drop_prob: float | None = None,
        norm: Norm = "layer",
        eps: float = 1e-5,
        bias: bool = True,
        head_dim: int | None = None,
        scale: float | None = None,
        rotary_theta: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            d_model,
            num_heads,
            drop_prob=attention_drop_prob,
            bias=bias,
            head_dim=head_dim,
            scale=scale,
            rotary_theta=rotary_theta,
            window=window,
        )
        self.attention_residual = residual(norm_order, d_model, drop_prob, eps=eps, bias=bias, norm=norm)
        inside = drop_prob if activation_drop_prob is None else activation_drop_prob
        self.feedforward = feedforward(d_model, ffn_hidden, inside, activation=activation, bias=bias)
        self.feedforward_residual = residual(norm_order, d_model, drop_prob, eps=eps, bias=bias, norm=norm)

    def forward(self, x: Float[Tensor, "B L D"], mask: MaskLike = None) -> Float[Tensor, "B L D"]:
        z: Tensor = self.attention_residual(x, lambda y: self.attention(y, mask))
        y: Tensor = self.feedforward_residual(z, self.feedforward)
        return y


class Encoder(nn.Module):
    """A stack of encoder layers; the mask reaches every one of them.

    Equation: Z⁽ⁿ⁾ = EncoderLayer(Z⁽ⁿ⁻¹⁾), n = 1 … N
    Source: Section 3.1 of "Attention Is All You Need"

    Args:
        d_model, ffn_hidden, num_heads, drop_prob: as in `EncoderLayer`.
        num_layers: number of layers N, each with weights of its own.
        norm_order, activation, attention_drop_prob, activation_drop_prob: as in `EncoderLayer`.
        norm, eps, bias, head_dim, scale, rotary_theta: as in `EncoderLayer`.
        layer_drop: probability with which a layer is left out in training (Fan et al. 2019, LayerDrop).
        final_norm: whether a layer norm follows the last layer; by default with norm_order="pre" only.
        windows: for each layer how far its attention reaches to each side, None for the whole text; by default all.
        local_rotary_theta: base of rotary positions in the layers with a window; as rotary_theta by default.
        first_norm: whether the first layer's attention has a norm before it, with norm_order="pre"; one that follows
            a normalised embedding needs none.
        relative_buckets: buckets of distances for learned biases of the scores, shared by all layers; 0 for none.
        relative_max_distance: from here on all distances share the last bucket.

    >>> import torch; from clearhead import Encoder
    >>> Encoder(512, 2048, 8, 0.1, 6)(torch.rand(2, 10, 512)).shape
    torch.Size([2, 10, 512])
    """

    def __init__(
        self,
        d_model: int,
        ffn_hidden: int,
        num_heads: int,
        drop_prob: float,
        num_layers: int,
        *,
        norm_order: NormOrder = "post",
        activation: Activation = "relu",
        attention_drop_prob: float = 0.0,
        activation_drop_prob: float | None = None,
        norm: Norm = "layer",
        eps: float = 1e-5,
        bias: bool = True,
        head_dim: int | None = None,
        scale: float | None = None,
        rotary_theta: float | None = None,
        layer_drop: float = 0.0,
        final_norm: bool | None = None,
        windows: Sequence[int | None] | None = None,
        local_rotary_theta: float | None = None,
        first_norm: bool = True,
        relative_buckets: int = 0,
        relative_max_distance: int = 128,
    ) -> None:
        super().__init__()
        if not 0.0 <= layer_drop < 1.0:
            raise ValueError(f"layer_drop is a probability from 0 up to, not including, 1; got {layer_drop}")
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1; got {num_layers}")
        windows = [None] * num_layers if windows is None else windows
        if len(windows) != num_layers:
            raise ValueError(f"windows say one radius (or None) a layer; got {len(windows)} for {num_layers} layers")
        local_theta = rotary_theta if local_rotary_theta is None else local_rotary_theta
        self.layers = nn.ModuleList(
            EncoderLayer(
                d_model,
                ffn_hidden,
                num_heads,
                drop_prob,
                norm_order=norm_order,
                activation=activation,
                attention_drop_prob=attention_drop_prob,
                activation_drop_prob=activation_drop_prob,
                norm=norm,
                eps=eps,
                bias=bias,
                head_dim=head_dim,
                scale=scale,
                rotary_theta=rotary_theta if window is None else local_theta,
                window=window,
            )
            for window in windows
        )
        if not first_norm and norm_order == "post":
            raise ValueError('first_norm=False goes with norm_order="pre": a post-norm layer ends with its norms')
        if not first_norm:
            cast(EncoderLayer, self.layers[0]).attention_residual.norm = nn.Identity()
        self.relative_bias: RelativePositionBias | None = None
        if relative_buckets:
            self.relative_bias = RelativePositionBias(relative_buckets, num_heads, max_distance=relative_max_distance)
        self.layer_drop = layer_drop
        has_norm = norm_order == "pre" if final_norm is None else final_norm
        self.norm = get_norm(norm, d_model, eps, bias=bias) if has_norm else None
        self.num_heads = num_heads

    def forward(self, x: Float[Tensor, "B L D"], mask: MaskLike = None) -> Float[Tensor, "B L D"]:
        if x.ndim != 3:
            raise ValueError(f"an encoder takes (batch, length, d_model); got a shape of {tuple(x.shape)}")
        batch, length, _ = x.shape
        mask = masks.as_mask(mask, batch=batch, heads=self.num_heads, queries=length, keys=length)
        if self.relative_bias is not None:
            mask = mask or masks.Mask(length=length)
            longest = length if mask.lengths is None else max(mask.lengths)
            mask = mask & masks.Mask(length=length, bias=self.relative_bias(longest, longest))
        for layer in self.layers:
            if self.training and self.layer_drop and torch.rand(()) < self.layer_drop:
                continue
            x = layer(x, mask)
        return x if self.norm is None else self.norm(x)
