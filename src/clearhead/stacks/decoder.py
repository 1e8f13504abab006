"""The decoder: the right half of Figure 1."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.layers.attention import CrossAttention, MultiHeadAttention, RelativePositionBias
from clearhead.layers.cache import DecoderCache, LayerCache
from clearhead.layers.feedforward import Activation, feedforward
from clearhead.layers.norm import Norm, get_norm
from clearhead.layers.residual import NormOrder, residual


class DecoderLayer(nn.Module):
    """One block of the decoder: self-attention, attention to the memory, and the feed-forward network.

    Equation: Z₁ = LN(X + MHA(X)), Z₂ = LN(Z₁ + MHA(Z₁, Y)), Z₃ = LN(Z₂ + FFN(Z₂))
    Source: Section 3.1 of "Attention Is All You Need"; with norm_order="pre", Z₁ = X + MHA(LN(X)), and so on

    Args:
        d_model, ffn_hidden, num_heads, drop_prob: as in `EncoderLayer`.
        norm_order, activation, attention_drop_prob, activation_drop_prob: as in `EncoderLayer`.
        norm, eps, bias, head_dim, scale: as in `EncoderLayer`.

    `forward(x, memory, mask=None, memory_mask=None, cache=None)`: x (B, L, D) is the target so far, memory (B, M, D)
    the encoder's output. The mask is as everywhere: without one each position attends to all, also to later ones; a
    decoder's is `masks.causal(L)`, joined with `masks.padding(keep)` where targets are padded. The memory's padding is
    memory_mask. With a cache, x are the newest tokens alone, and the mask is over all tokens.

    Weights are drawn as `torch.nn.TransformerDecoderLayer` draws them.

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
        activation: Activation = "relu",
        attention_drop_prob: float = 0.0,
        activation_drop_prob: float | None = None,
        norm: Norm = "layer",
        eps: float = 1e-5,
        bias: bool = True,
        head_dim: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            d_model, num_heads, drop_prob=attention_drop_prob, bias=bias, head_dim=head_dim, scale=scale
        )
        self.attention_residual = residual(norm_order, d_model, drop_prob, eps=eps, bias=bias, norm=norm)
        self.cross_attention = CrossAttention(
            d_model, num_heads, drop_prob=attention_drop_prob, bias=bias, head_dim=head_dim, scale=scale
        )
        self.cross_attention_residual = residual(norm_order, d_model, drop_prob, eps=eps, bias=bias, norm=norm)
        inside = drop_prob if activation_drop_prob is None else activation_drop_prob
        self.feedforward = feedforward(d_model, ffn_hidden, inside, activation=activation, bias=bias)
        self.feedforward_residual = residual(norm_order, d_model, drop_prob, eps=eps, bias=bias, norm=norm)

    def forward(
        self,
        x: Float[Tensor, "N L D"],
        memory: Float[Tensor, "B M D"],
        mask: MaskLike = None,
        memory_mask: MaskLike = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "N L D"]:
        own, fixed = (None, None) if cache is None else cache
        z: Tensor = self.attention_residual(x, lambda y: self.attention(y, mask, own))
        z = self.cross_attention_residual(z, lambda y: self.cross_attention(y, memory, memory_mask, fixed))
        y: Tensor = self.feedforward_residual(z, self.feedforward)
        return y


class Decoder(nn.Module):
    """A stack of decoder layers; all attend to the same memory.

    Equation: Z⁽ⁿ⁾ = DecoderLayer(Z⁽ⁿ⁻¹⁾, Y), n = 1 … N
    Source: Section 3.1 of "Attention Is All You Need"

    Args:
        d_model, ffn_hidden, num_heads, drop_prob: as in `DecoderLayer`.
        num_layers: number of layers N, each with weights of its own.
        norm_order, activation, attention_drop_prob, activation_drop_prob, norm, eps, bias, head_dim, scale: as in
            `DecoderLayer`.
        layer_drop: probability with which a layer is left out in training (Fan et al. 2019, LayerDrop).
        final_norm: whether a norm follows the last layer; by default with norm_order="pre" only.
        relative_buckets: buckets of distances, to earlier tokens alone, for learned biases of self-attention's scores,
            shared by all layers; 0 for none.
        relative_max_distance: from here on all distances share the last bucket.

    `forward(x, memory, mask=None, memory_mask=None, cache=None)`, as in `DecoderLayer`, with a `DecoderCache`.

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
        activation: Activation = "relu",
        attention_drop_prob: float = 0.0,
        activation_drop_prob: float | None = None,
        norm: Norm = "layer",
        eps: float = 1e-5,
        bias: bool = True,
        head_dim: int | None = None,
        scale: float | None = None,
        layer_drop: float = 0.0,
        final_norm: bool | None = None,
        relative_buckets: int = 0,
        relative_max_distance: int = 128,
    ) -> None:
        super().__init__()
        if not 0.0 <= layer_drop < 1.0:
            raise ValueError(f"layer_drop is a probability from 0 up to, not including, 1; got {layer_drop}")
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1; got {num_layers}")
        self.layers = nn.ModuleList(
            DecoderLayer(
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
            )
            for _ in range(num_layers)
        )
        self.relative_bias: RelativePositionBias | None = None
        if relative_buckets:
            self.relative_bias = RelativePositionBias(
                relative_buckets, num_heads, max_distance=relative_max_distance, bidirectional=False
            )
        self.layer_drop, self.num_heads = layer_drop, num_heads
        has_norm = norm_order == "pre" if final_norm is None else final_norm
        self.norm = get_norm(norm, d_model, eps, bias=bias) if has_norm else None

    def forward(
        self,
        x: Float[Tensor, "N L D"],
        memory: Float[Tensor, "B M D"],
        mask: MaskLike = None,
        memory_mask: MaskLike = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "N L D"]:
        if x.ndim != 3:
            raise ValueError(f"a decoder takes (batch, length, d_model); got a shape of {tuple(x.shape)}")
        batch, length, _ = x.shape
        keys = length if cache is None else cache.length + length
        mask = masks.as_mask(mask, batch=batch, heads=self.num_heads, queries=length, keys=keys)
        if self.relative_bias is not None:
            mask = mask or masks.Mask(length=keys)
            mask = mask & masks.Mask(length=keys, bias=self.relative_bias(length, keys))
        if cache is not None:
            mask = cache.step_mask(mask, batch, length, x.device)
        for number, layer in enumerate(self.layers):
            # a layer that is left out would miss the step in its cache
            if self.training and self.layer_drop and cache is None and torch.rand(()) < self.layer_drop:
                continue
            x = layer(x, memory, mask, memory_mask, None if cache is None else cache.layers[number])
        return x if self.norm is None else self.norm(x)
