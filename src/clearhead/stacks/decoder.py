"""The decoder: the right half of Figure 1."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.layers.attention import RelativePositionBias
from clearhead.layers.cache import DecoderCache, LayerCache
from clearhead.layers.options import DEFAULT_OPTIONS, LayerOptions
from clearhead.layers.residual import NormOrder
from clearhead.stacks.encoder import check_stack


class DecoderLayer(nn.Module):
    """One decoder layer: self-attention, cross-attention to the memory, and the feed-forward network.

    Equation: Z₁ = LN(X + MHA(X)), Z₂ = LN(Z₁ + MHA(Z₁, Y)), Z₃ = LN(Z₂ + FFN(Z₂))
    Source: Section 3.1 of "Attention Is All You Need"; with norm_order="pre", Z₁ = X + MHA(LN(X)), and so on

    Args:
        d_model, ffn_hidden, num_heads, drop_prob, norm_order, options: as in `EncoderLayer`.

    `forward(x, memory, mask=None, memory_mask=None, cache=None)`: x (B, L, D) is the target so far, memory (B, M, D)
    the output of the encoder. Without a mask each position attends to all others, also to later ones. A decoder needs
    `masks.causal(L)`, joined with `masks.padding(keep)` for padded targets. memory_mask is the padding of the memory.
    With a cache, x are only the newest tokens, and the mask is over all tokens.

    The weights are initialized as in `torch.nn.TransformerDecoderLayer`.

    >>> import torch; from clearhead import DecoderLayer, masks
    >>> DecoderLayer(512, 2048, 8, 0.1)(torch.rand(2, 7, 512), torch.rand(2, 10, 512), masks.causal(7)).shape
    torch.Size([2, 7, 512])
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
    ) -> None:
        super().__init__()
        self.attention = options.build_self_attention(d_model, num_heads)
        self.attention_residual = options.build_residual(norm_order, d_model, drop_prob)
        self.cross_attention = options.build_cross_attention(d_model, num_heads)
        self.cross_attention_residual = options.build_residual(norm_order, d_model, drop_prob)
        self.feedforward = options.build_feedforward(d_model, ffn_hidden, drop_prob)
        self.feedforward_residual = options.build_residual(norm_order, d_model, drop_prob)

    def forward(
        self,
        x: Float[Tensor, "N L D"],
        memory: Float[Tensor, "B M D"],
        mask: MaskLike = None,
        memory_mask: MaskLike = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "N L D"]:
        self_cache, cross_cache = (None, None) if cache is None else cache
        z: Tensor = self.attention_residual(x, lambda y: self.attention(y, mask, self_cache))
        z = self.cross_attention_residual(z, lambda y: self.cross_attention(y, memory, memory_mask, cross_cache))
        y: Tensor = self.feedforward_residual(z, self.feedforward)
        return y


class Decoder(nn.Module):
    """A stack of decoder layers, all with the same memory and masks.

    Equation: Z⁽ⁿ⁾ = DecoderLayer(Z⁽ⁿ⁻¹⁾, Y), n = 1 … N
    Source: Section 3.1 of "Attention Is All You Need"

    Args:
        d_model, ffn_hidden, num_heads, drop_prob, norm_order, options: as in `DecoderLayer`.
        num_layers: number of layers N, each with its own weights.
        layer_drop: probability of skipping a layer in training (Fan et al. 2019, LayerDrop).
        final_norm: whether a norm follows the last layer; by default only with norm_order="pre".
        relative_buckets: buckets of learned position biases of self-attention, for earlier tokens only, shared by all
            layers; 0 for none.
        relative_max_distance: distances from here on share the last bucket.

    Raises:
        ValueError: options out of range; in `forward`, a wrong shape or mask.

    `forward(x, memory, mask=None, memory_mask=None, cache=None)`: as in `DecoderLayer`, with a `DecoderCache`.

    >>> import torch; from clearhead import Decoder, masks
    >>> Decoder(512, 2048, 8, 0.1, 6)(torch.rand(2, 7, 512), torch.rand(2, 10, 512), masks.causal(7)).shape
    torch.Size([2, 7, 512])
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
        layer_drop: float = 0.0,
        final_norm: bool | None = None,
        relative_buckets: int = 0,
        relative_max_distance: int = 128,
    ) -> None:
        super().__init__()
        check_stack(num_layers, layer_drop)
        self.layers = nn.ModuleList(
            DecoderLayer(d_model, ffn_hidden, num_heads, drop_prob, norm_order=norm_order, options=options)
            for _ in range(num_layers)
        )
        self.relative_bias: RelativePositionBias | None = None
        if relative_buckets:
            self.relative_bias = RelativePositionBias(
                relative_buckets, num_heads, max_distance=relative_max_distance, bidirectional=False
            )
        self.layer_drop, self.num_heads = layer_drop, num_heads
        has_norm = norm_order == "pre" if final_norm is None else final_norm
        self.norm = options.build_norm(d_model) if has_norm else None

    def forward(
        self,
        x: Float[Tensor, "N L D"],
        memory: Float[Tensor, "B M D"],
        mask: MaskLike = None,
        memory_mask: MaskLike = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "N L D"]:
        if x.ndim != 3:
            raise ValueError(f"Expected x of shape (batch, length, d_model), got {tuple(x.shape)}.")
        rows, length, _ = x.shape
        keys = length if cache is None else cache.length + length
        mask = masks.as_mask(mask, batch=rows, heads=self.num_heads, queries=length, keys=keys)
        if self.relative_bias is not None:
            mask = mask or masks.Mask(length=keys)
            mask = mask & masks.Mask(length=keys, bias=self.relative_bias(length, keys))
        if cache is not None:
            mask = cache.step_mask(mask, rows, length, x.device)
        for index, layer in enumerate(self.layers):
            # with a cache no layer is skipped: its cache would miss the step
            if self.training and self.layer_drop and cache is None and torch.rand(()) < self.layer_drop:
                continue
            x = layer(x, memory, mask, memory_mask, None if cache is None else cache.layers[index])
        return x if self.norm is None else self.norm(x)
