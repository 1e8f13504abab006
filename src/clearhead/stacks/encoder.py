"""The encoder: the left half of Figure 1."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.layers.attention import LinearPositionBias, MultiHeadAttention, RelativePositionBias
from clearhead.layers.disentangled_attention import (
    ConvolutionalResidual,
    ConvolutionOptions,
    DisentangledAttention,
    DistanceEmbedding,
    DistanceOptions,
    Distances,
    with_distances,
)
from clearhead.layers.options import DEFAULT_OPTIONS, LayerOptions
from clearhead.layers.residual import NormOrder


class EncoderLayer(nn.Module):
    """One encoder layer: self-attention and the feed-forward network, each with residual connection and norm.

    Equation: Z₁ = LN(X + MHA(X)), Z₂ = LN(Z₁ + FFN(Z₁))
    Source: Section 3.1 of "Attention Is All You Need"; with norm_order="pre", Z₁ = X + MHA(LN(X)), and so on

    Args:
        d_model: width D of x.
        ffn_hidden: width F inside the feed-forward network.
        num_heads: attention heads H.
        drop_prob: dropout in the feed-forward network and on the residual branches.
        norm_order: "post" (the paper's) or "pre".
        options: activation, other dropout rates, norm, biases and scale.
        rotary_theta: base of rotary positions in the attention; None for none.
        rotary_factor: positions are divided by it, as in `RotaryEmbedding`.
        window: attend only to tokens at most this far away; None for all.
        distance_options: options of disentangled attention, without rotary positions and windows; None for none.

    The weights are initialized as in `torch.nn.TransformerEncoderLayer`.
    `forward(x, mask=None, distances=None)` maps x (B, L, D) to (B, L, D). Disentangled attention needs the distances.

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
        options: LayerOptions = DEFAULT_OPTIONS,
        rotary_theta: float | None = None,
        rotary_factor: float = 1.0,
        window: int | None = None,
        distance_options: DistanceOptions | None = None,
    ) -> None:
        super().__init__()
        self.attention: MultiHeadAttention | DisentangledAttention
        if distance_options is None:
            self.attention = options.build_self_attention(
                d_model, num_heads, rotary_theta=rotary_theta, rotary_factor=rotary_factor, window=window
            )
        elif rotary_theta is not None or window is not None or options.scale is not None:
            raise ValueError("disentangled attention has no rotary positions, windows or scale of its own")
        else:
            drop = options.attention_drop_prob
            self.attention = DisentangledAttention(d_model, num_heads, distance_options, drop_prob=drop)
        self.attention_residual = options.build_residual(norm_order, d_model, drop_prob)
        self.feedforward = options.build_feedforward(d_model, ffn_hidden, drop_prob)
        self.feedforward_residual = options.build_residual(norm_order, d_model, drop_prob)

    def forward(
        self, x: Float[Tensor, "B L D"], mask: MaskLike = None, distances: Distances | None = None
    ) -> Float[Tensor, "B L D"]:
        z: Tensor = self.attention_residual(x, with_distances(self.attention, mask, distances))
        y: Tensor = self.feedforward_residual(z, self.feedforward)
        return y


class Encoder(nn.Module):
    """A stack of encoder layers, all with the same mask.

    Equation: Z⁽ⁿ⁾ = EncoderLayer(Z⁽ⁿ⁻¹⁾), n = 1 … N
    Source: Section 3.1 of "Attention Is All You Need"

    Args:
        d_model, ffn_hidden, num_heads, drop_prob, norm_order, options, rotary_theta, rotary_factor: as in
            `EncoderLayer`.
        num_layers: number of layers N.
        layer_drop: probability of skipping a layer in training (Fan et al. 2019, LayerDrop).
        final_norm: whether a norm follows the last layer; by default only with norm_order="pre".
        windows: for each layer its window as in `EncoderLayer`, or None; by default no layer has one.
        local_rotary_theta: base of rotary positions in layers with a window; rotary_theta where None.
        first_norm: whether the first layer, with norm_order="pre", has a norm before its attention; not needed after
            a normalized embedding.
        relative_buckets: buckets of learned position biases, shared by all layers; 0 for none.
        relative_max_distance: distances from here on share the last bucket.
        linear_bias: whether scores get a `LinearPositionBias` instead.
        layer_order: for each layer the number of its weights, from 0 (Lan et al. 2019, ALBERT). Layers with the same
            number share them: `layers` holds them once, and they run several times. By default each layer has its own.
        distance_options: options of disentangled attention, whose table of distances all layers share; None for none.
        convolution: options of a convolution beside the first layer; None for none.

    Raises:
        ValueError: options that contradict each other or are out of range; in `forward`, a wrong shape or mask.

    `forward(x, mask=None)` maps x (B, L, D) to (B, L, D).

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
        options: LayerOptions = DEFAULT_OPTIONS,
        rotary_theta: float | None = None,
        rotary_factor: float = 1.0,
        layer_drop: float = 0.0,
        final_norm: bool | None = None,
        windows: Sequence[int | None] | None = None,
        local_rotary_theta: float | None = None,
        first_norm: bool = True,
        relative_buckets: int = 0,
        relative_max_distance: int = 128,
        linear_bias: bool = False,
        layer_order: Sequence[int] | None = None,
        distance_options: DistanceOptions | None = None,
        convolution: ConvolutionOptions | None = None,
    ) -> None:
        super().__init__()
        check_stack(num_layers, layer_drop)
        self.order = tuple(range(num_layers) if layer_order is None else layer_order)
        if layer_order is not None:
            _check_shared(self.order, num_layers, windows, layer_drop, first_norm)
            num_layers = max(self.order) + 1
        windows = _one_per_layer(windows, num_layers)
        local_theta = rotary_theta if local_rotary_theta is None else local_rotary_theta
        self.layers = nn.ModuleList(
            EncoderLayer(
                d_model,
                ffn_hidden,
                num_heads,
                drop_prob,
                norm_order=norm_order,
                options=options,
                rotary_theta=rotary_theta if window is None else local_theta,
                rotary_factor=rotary_factor,
                window=window,
                distance_options=distance_options,
            )
            for window in windows
        )
        if not first_norm:
            _remove_norm(cast(EncoderLayer, self.layers[0]), norm_order)
        self.relative_bias = _position_bias(num_heads, relative_buckets, relative_max_distance, linear_bias)
        extra = {"eps": options.eps, "drop_prob": drop_prob}
        self.distances = None if distance_options is None else DistanceEmbedding(d_model, distance_options, **extra)
        self.convolution = None if convolution is None else ConvolutionalResidual(d_model, convolution, **extra)
        self.layer_drop, self.num_heads = layer_drop, num_heads
        has_norm = norm_order == "pre" if final_norm is None else final_norm
        self.norm = options.build_norm(d_model) if has_norm else None

    def forward(self, x: Float[Tensor, "B L D"], mask: MaskLike = None) -> Float[Tensor, "B L D"]:
        if x.ndim != 3:
            raise ValueError(f"Expected x of shape (batch, length, d_model), got {tuple(x.shape)}.")
        batch, length, _ = x.shape
        mask = masks.as_mask(mask, batch=batch, heads=self.num_heads, queries=length, keys=length)
        longest = length if mask is None or mask.lengths is None else max(mask.lengths)
        if self.relative_bias is not None:
            mask = mask or masks.Mask(length=length)
            mask = mask & masks.Mask(length=length, bias=self.relative_bias(longest, longest))
        extra = () if self.distances is None else (self.distances(longest),)
        for place, number in enumerate(self.order):
            layer = self.layers[number]
            if self.training and self.layer_drop and torch.rand(()) < self.layer_drop:
                continue
            z = layer(x, mask, *extra)
            x = z if place or self.convolution is None else self.convolution(x, z, mask)
        return x if self.norm is None else self.norm(x)


def _one_per_layer(windows: Sequence[int | None] | None, num_layers: int) -> Sequence[int | None]:
    windows = [None] * num_layers if windows is None else windows
    if len(windows) != num_layers:
        raise ValueError(f"Expected one window (or None) for each of {num_layers} layers, got {len(windows)} windows.")
    return windows


def _position_bias(
    num_heads: int, buckets: int, max_distance: int, linear: bool
) -> RelativePositionBias | LinearPositionBias | None:
    if linear and buckets:
        raise ValueError(f"linear_bias requires relative_buckets=0; got {buckets}")
    if linear:
        return LinearPositionBias(num_heads)
    return RelativePositionBias(buckets, num_heads, max_distance=max_distance) if buckets else None


def _remove_norm(layer: EncoderLayer, norm_order: NormOrder) -> None:
    if norm_order == "post":
        raise ValueError('first_norm=False requires norm_order="pre": post-norm layers have their norms at the end')
    layer.attention_residual.norm = nn.Identity()


def _check_shared(
    order: tuple[int, ...], num_layers: int, windows: object, layer_drop: float, first_norm: bool
) -> None:
    if len(order) != num_layers or set(order) != set(range(max(order) + 1)):
        raise ValueError(
            f"layer_order has a number from 0 for each of {num_layers} layers, without gaps; got {list(order)}"
        )
    if windows is not None or layer_drop or not first_norm:
        raise ValueError("layers that share weights are alike: omit windows, layer_drop and first_norm=False")


def check_stack(num_layers: int, layer_drop: float) -> None:
    """Raise a ValueError for a stack without layers, or a layer_drop that is not a probability below 1."""
    if not 0.0 <= layer_drop < 1.0:
        raise ValueError(f"layer_drop is a probability from 0 up to, not including, 1; got {layer_drop}")
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1; got {num_layers}")
