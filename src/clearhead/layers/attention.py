"""Multi-head attention: of a sequence to itself, and to another."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations import attention, masks, positions
from clearhead.equations.masks import MaskLike
from clearhead.kernels.attention import fused_scaled_dot_product
from clearhead.layers.cache import CrossAttentionCache, SelfAttentionCache


class RotaryEmbedding(nn.Module):
    """Turns queries and keys by their positions, so that their product depends on the distance alone.

    Equation: x′_j = x_j cos φ − x_{j+d_k/2} sin φ, x′_{j+d_k/2} = x_{j+d_k/2} cos φ + x_j sin φ
    Source: Su et al. 2021, "RoFormer"

    Args:
        width: d_k, an even number.
        theta: base of the wavelengths.
    """

    def __init__(self, width: int, theta: float = 10000.0) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"rotary positions turn pairs of columns: d_k must be even; got {width}")
        self.width, self.theta = width, theta

    def forward(
        self, x: Float[Tensor, "B H L K"], mask: masks.Mask | None = None, start: int = 0
    ) -> Float[Tensor, "B H L K"]:
        # the product of a turned query and key depends on their distance alone: padding on the left needs no care
        place_L = torch.arange(start, start + x.shape[2], device=x.device)
        if mask is not None and mask.lengths is not None:
            place_L = torch.cat([place_L[:length] for length in mask.lengths])
        exact = torch.promote_types(x.dtype, torch.float32)
        angles = positions.rotary_angles(place_L, self.width, self.theta, dtype=exact)
        return positions.rotate(x, angles)

    def extra_repr(self) -> str:
        return f"{self.width}, theta={self.theta}"


class MultiHeadAttention(nn.Module):
    """Self-attention: queries, keys and values all come from x.

    Equation: MultiHead(X) = Concat(Z_1, …, Z_h) W_O + b_O, Z_i = softmax(Q_i K_iᵀ / √d_k + M) V_i
    Source: Section 3.2.2 of "Attention Is All You Need"; its steps are written out in `equations/attention.py`

    Args:
        d_model: width D of x.
        num_heads: heads H; d_k = d_model / num_heads.
        drop_prob: dropout of the attention weights.
        bias: whether the projections have biases.
        head_dim: width d_k of a head; d_model / num_heads where None.
        scale: what the products of queries and keys are multiplied with; 1 / √d_k where None.
        rotary_theta: turn queries and keys by rotary positions with this base; None for none.
        window: attend only to keys at most this far away; None for all.

    Raises:
        ValueError: d_model is not divisible by num_heads; in `forward`, a mask of a wrong shape or dtype.

    The three projections are one matrix, [Q; K; V], and weights are drawn, as in `torch.nn.MultiheadAttention`.
    `forward(x, mask=None, cache=None)`: with a cache, x (B, L, D) are the newest tokens, which attend to the tokens
    before them as well; the mask is then over all keys, or slots, that the cache holds after the step.

    >>> import torch; from clearhead import MultiHeadAttention
    >>> MultiHeadAttention(512, 8)(torch.rand(30, 5, 512)).shape
    torch.Size([30, 5, 512])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        drop_prob: float = 0.0,
        bias: bool = True,
        head_dim: int | None = None,
        scale: float | None = None,
        rotary_theta: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        head_dim = _head_dim(d_model, num_heads, head_dim, drop_prob)
        inner = num_heads * head_dim
        self.num_heads, self.drop_prob, self.scale, self.window = num_heads, drop_prob, scale, window
        # torch.nn draws the output projection first, and the fused one as a single Xavier matrix
        self.out = nn.Linear(inner, d_model, bias=bias)
        self.qkv = _empty_linear(d_model, 3 * inner, bias)
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
            nn.init.zeros_(self.out.bias)
        self.rotary = None if rotary_theta is None else RotaryEmbedding(head_dim, rotary_theta)

    def forward(
        self, x: Float[Tensor, "B L D"], mask: MaskLike = None, cache: SelfAttentionCache | None = None
    ) -> Float[Tensor, "B L D"]:
        if x.ndim != 3:
            raise ValueError(f"attention takes (batch, length, d_model); got a shape of {tuple(x.shape)}")
        batch, length, _ = x.shape
        each, before, filled = (1, 0, 0) if cache is None else (cache.each, cache.length, cache.filled)
        keys = filled + each * length
        mask = masks.as_mask(mask, batch=batch // each, heads=self.num_heads, queries=each * length, keys=keys)
        mask = self.local(mask, keys)
        q, k, v = (attention.split_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, dim=-1))
        if self.rotary is not None:
            q, k = self.rotary(q, mask, before), self.rotary(k, mask, before)
        if cache is not None:
            q, (k, v) = cache.queries(q), cache.append(k, v)
        drop_prob = self.drop_prob if self.training else 0.0
        values = fused_scaled_dot_product(q, k, v, mask, drop_prob=drop_prob, scale=self.scale)
        mixed: Tensor = self.out(attention.merge_heads(values).reshape(batch, length, self.out.in_features))
        return mixed

    def local(self, mask: masks.Mask | None, length: int) -> masks.Mask | None:
        """The mask with this layer's window, if it has one."""
        # a graph is drawn from one short example, for texts of every length
        if self.window is None or (not torch.compiler.is_exporting() and self.window >= length - 1):
            return mask
        if mask is not None and mask.lengths is not None:
            return replace(mask, window=self.window if mask.window is None else min(self.window, mask.window))
        near = masks.window(length, self.window)
        return near if mask is None else mask & near

    def extra_repr(self) -> str:
        window = "" if self.window is None else f", window={self.window}"
        return f"num_heads={self.num_heads}, drop_prob={self.drop_prob}{window}"


class CrossAttention(nn.Module):
    """Attention of one sequence to another: queries come from x, keys and values from the memory.

    Equation: MultiHead(X, Y) = Concat(Z_1, …, Z_h) W_O + b_O, Z_i = softmax(Q_i K_iᵀ / √d_k + M) V_i
    Source: Sections 3.2.2 and 3.2.3 of "Attention Is All You Need"; Q = X W_Q + b_Q, [K; V] = Y W_KV + b_KV

    Args: as in `MultiHeadAttention`; both sequences have width d_model.

    Raises:
        ValueError: as in `MultiHeadAttention`; in `forward`, a batch of x that is no multiple of the memory's.

    Weights are drawn as in `torch.nn.MultiheadAttention`. `forward(x, memory, mask=None, cache=None)`: with a cache the
    memory is projected at the first step only. A row of the memory may serve several rows of x that stand one after
    another, such as the beams of a sentence: x (B n, L, D), memory (B, M, D), and a mask that is padding alone.

    >>> import torch; from clearhead import CrossAttention
    >>> CrossAttention(512, 8)(torch.rand(30, 5, 512), torch.rand(30, 9, 512)).shape
    torch.Size([30, 5, 512])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        drop_prob: float = 0.0,
        bias: bool = True,
        head_dim: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        inner = num_heads * _head_dim(d_model, num_heads, head_dim, drop_prob)
        self.num_heads, self.drop_prob, self.scale = num_heads, drop_prob, scale
        self.out = nn.Linear(inner, d_model, bias=bias)
        self.q, self.kv = _empty_linear(d_model, inner, bias), _empty_linear(d_model, 2 * inner, bias)
        # one draw for both, as torch.nn's single Xavier matrix [Q; K; V]
        drawn = nn.init.xavier_uniform_(torch.empty(3 * inner, d_model))
        with torch.no_grad():
            self.q.weight.copy_(drawn[:inner])
            self.kv.weight.copy_(drawn[inner:])
        if bias:
            for linear in (self.q, self.kv, self.out):
                nn.init.zeros_(linear.bias)

    def forward(
        self,
        x: Float[Tensor, "N L D"],
        memory: Float[Tensor, "B M D"],
        mask: MaskLike = None,
        cache: CrossAttentionCache | None = None,
    ) -> Float[Tensor, "N L D"]:
        if x.ndim != 3 or memory.ndim != 3:
            raise ValueError(
                f"cross-attention takes two times (batch, length, d_model); got {tuple(x.shape)}, {tuple(memory.shape)}"
            )
        rows, length, batch, keys = x.shape[0], x.shape[1], memory.shape[0], memory.shape[1]
        if not batch or rows % batch:
            raise ValueError(f"{rows} rows attend to a memory of {batch}; as many, or a multiple of it, are wanted")
        each = rows // batch
        checked = masks.as_mask(mask, batch=batch, heads=self.num_heads, queries=length, keys=keys)
        if each > 1 and checked is not None and not checked.only_padding:
            raise ValueError(f"{each} rows share each row of the memory, which goes with a mask that is padding alone")
        k, v = self._keys_and_values(memory) if cache is None else cache.filled(lambda: self._held(memory))
        # the rows that share a memory stand as queries of one row, so that nothing is copied
        q = attention.split_heads(self.q(x).reshape(batch, each * length, -1), self.num_heads)
        drop_prob = self.drop_prob if self.training else 0.0
        values = fused_scaled_dot_product(q, k, v, checked, drop_prob=drop_prob, scale=self.scale)
        mixed: Tensor = self.out(attention.merge_heads(values))
        return mixed.reshape(rows, length, -1)

    def _held(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values head by head in memory: every step reads them so."""
        k, v = self._keys_and_values(memory)
        return k.contiguous(), v.contiguous()

    def _keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (attention.split_heads(part, self.num_heads) for part in self.kv(memory).chunk(2, dim=-1))
        return k, v

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, drop_prob={self.drop_prob}"


class RelativePositionBias(nn.Module):
    """A learned number for each head and each bucket of distances, added to the scaled scores of every layer.

    Equation: S′ = S + B_h(b(j − i))
    Source: Raffel et al. 2020, "T5", Section 2.1; Song et al. 2020, "MPNet"

    Args:
        num_buckets: buckets of distances.
        num_heads: attention heads H.
        max_distance: from here on all distances share the last bucket.
        one_way: whether all buckets serve the keys behind (a decoder's), or half of them each direction.

    `forward(queries, keys)` gives (1, H, queries, keys); the last query stands at the last key.
    """

    def __init__(self, num_buckets: int, num_heads: int, *, max_distance: int = 128, one_way: bool = False) -> None:
        super().__init__()
        exact = num_buckets // (2 if one_way else 4)
        if exact < 1 or max_distance <= exact:
            raise ValueError(
                f"relative biases need {2 if one_way else 4} buckets or more, and a max_distance beyond the "
                f"{exact} distances with a bucket each; got num_buckets={num_buckets}, max_distance={max_distance}"
            )
        self.max_distance, self.one_way = max_distance, one_way
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.weight)

    def forward(self, queries: int, keys: int) -> Float[Tensor, "1 H L M"]:
        buckets = positions.relative_buckets(
            queries,
            keys,
            self.weight.shape[0],
            max_distance=self.max_distance,
            one_way=self.one_way,
            device=self.weight.device,
        )
        return self.weight[buckets].permute(2, 0, 1)[None]


def _head_dim(d_model: int, num_heads: int, head_dim: int | None, drop_prob: float) -> int:
    """The width of a head, after checking what attention is built from."""
    if not 0.0 <= drop_prob < 1.0:
        raise ValueError(f"drop_prob is a probability from 0 up to, not including, 1; got {drop_prob}")
    if num_heads < 1 or (head_dim is None and d_model % num_heads):
        raise ValueError(
            f"d_model must be divisible by num_heads, so that each head gets d_model / num_heads columns; "
            f"got d_model={d_model}, num_heads={num_heads}"
        )
    if head_dim is not None and head_dim < 1:
        raise ValueError(f"head_dim must be at least 1; got {head_dim}")
    return d_model // num_heads if head_dim is None else head_dim


def _empty_linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A linear map whose weights are still to be drawn."""
    empty = nn.Linear(inputs, outputs, bias=bias, device="meta")
    return empty.to_empty(device=torch.get_default_device())
