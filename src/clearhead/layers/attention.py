"""Multi-head attention: within a sequence, and from one sequence to another."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations import masks, positions
from clearhead.equations.attention import merge_heads, repeat_heads, split_heads
from clearhead.equations.masks import MaskLike, as_mask
from clearhead.kernels.attention import scaled_dot_product_attention
from clearhead.layers.cache import CrossAttentionCache, SelfAttentionCache


class RotaryEmbedding(nn.Module):
    """Rotary positions: queries and keys rotated by their positions, so that Q Kᵀ depends on distances only.

    Equation: x′_j = x_j cos φ − x_{j+d_k/2} sin φ, x′_{j+d_k/2} = x_{j+d_k/2} cos φ + x_j sin φ
    Source: Su et al. 2021, "RoFormer"

    Args:
        width: d_k, an even number.
        theta: base of the wavelengths.
        factor: all positions are divided by it, as in `equations.positions.rotary_angles`.

    Raises:
        ValueError: an odd width.

    `forward(x, mask=None, start=0)` rotates x (B, H, L, d_k), whose first position is `start`.
    """

    def __init__(self, width: int, theta: float = 10000.0, factor: float = 1.0) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"rotary positions rotate pairs of columns: d_k must be even; got {width}")
        self.width, self.theta, self.factor = width, theta, factor

    def forward(
        self, x: Float[Tensor, "B H L K"], mask: masks.Mask | None = None, start: int = 0
    ) -> Float[Tensor, "B H L K"]:
        # only distances matter: padding on the left needs no correction
        position_L = torch.arange(start, start + x.shape[2], device=x.device)
        if mask is not None and mask.lengths is not None:
            position_L = torch.cat([position_L[:length] for length in mask.lengths])
        exact = torch.promote_types(x.dtype, torch.float32)
        angles = positions.rotary_angles(position_L, self.width, self.theta, factor=self.factor, dtype=exact)
        return positions.rotate(x, angles)

    def extra_repr(self) -> str:
        scaled = "" if self.factor == 1.0 else f", factor={self.factor}"
        return f"{self.width}, theta={self.theta}{scaled}"


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention: queries, keys and values are projections of x.

    Equation: MultiHead(X) = Concat(Z_1, …, Z_h) W_O + b_O, Z_i = softmax(Q_i K_iᵀ / √d_k + M) V_i
    Source: Section 3.2.2 of "Attention Is All You Need"; its steps are written out in `equations/attention.py`

    Args:
        d_model: width D of x.
        num_heads: heads H; d_k = d_model / num_heads.
        drop_prob: dropout of the attention weights.
        bias: whether the projections have biases.
        head_dim: width d_k of a head; d_model / num_heads where None.
        num_kv_heads: heads of keys and values, each shared by num_heads / num_kv_heads consecutive heads of queries
            (Ainslie et al. 2023, "GQA"); num_heads where None.
        scale: factor of Q Kᵀ; 1 / √d_k where None.
        rotary_theta: base of rotary positions; None for none.
        rotary_factor: factor of `RotaryEmbedding`.
        window: attend only to keys at most this far away; None for all.

    Raises:
        ValueError: d_model is not divisible by num_heads, or num_heads by num_kv_heads; in `forward`, a mask of a
            wrong shape or dtype.

    The three projections are one matrix, [Q; K; V], initialized as in `torch.nn.MultiheadAttention`.
    `forward(x, mask=None, cache=None)`: with a cache, x (B, L, D) are the newest tokens, which also attend to the
    cached ones. The mask is then over all keys, those of this step included.

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
        num_kv_heads: int | None = None,
        scale: float | None = None,
        rotary_theta: float | None = None,
        rotary_factor: float = 1.0,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = _head_dim(d_model, num_heads, head_dim, drop_prob)
        inner = num_heads * self.head_dim
        self.num_heads, self.drop_prob, self.scale, self.window = num_heads, drop_prob, scale, window
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be divisible by num_kv_heads; got num_heads={num_heads}, num_kv_heads={num_kv_heads}"
            )
        # in the order of torch.nn: first the output projection, then [Q; K; V] as one Xavier matrix
        self.out = nn.Linear(inner, d_model, bias=bias)
        self.qkv = _empty_linear(d_model, inner + 2 * self.num_kv_heads * self.head_dim, bias)
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
            nn.init.zeros_(self.out.bias)
        self.rotary = None if rotary_theta is None else RotaryEmbedding(self.head_dim, rotary_theta, rotary_factor)

    def forward(
        self, x: Float[Tensor, "N L D"], mask: MaskLike = None, cache: SelfAttentionCache | None = None
    ) -> Float[Tensor, "N L D"]:
        if x.ndim != 3:
            raise ValueError(f"Expected x of shape (batch, length, d_model), got {tuple(x.shape)}.")
        rows, length, _ = x.shape
        batch, queries, keys = (rows, length, length) if cache is None else cache.sizes_after(rows, length)
        mask = self.apply_window(as_mask(mask, batch=batch, heads=self.num_heads, queries=queries, keys=keys), keys)
        q, k, v = self.split(self.qkv(x))
        if self.rotary is not None:
            start = 0 if cache is None else cache.length
            q, k = self.rotary(q, mask, start), self.rotary(k, mask, start)
        k, v = self.repeat(k), self.repeat(v)
        if cache is not None:
            k, v = cache.append(k, v)
        drop_prob = self.drop_prob if self.training else 0.0
        z = scaled_dot_product_attention(fold_rows(q, k), k, v, mask, drop_prob=drop_prob, scale=self.scale)
        output: Tensor = self.out(merge_heads(z).reshape(rows, length, self.num_heads * self.head_dim))
        return output

    def split(self, qkv: Float[Tensor, "N L P"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (N, H, L, d_k), and keys and values of num_kv_heads heads, from their joint projection."""
        shared = self.num_kv_heads * self.head_dim
        q, k, v = torch.split(qkv, [self.num_heads * self.head_dim, shared, shared], dim=-1)
        return split_heads(q, self.num_heads), split_heads(k, self.num_kv_heads), split_heads(v, self.num_kv_heads)

    def repeat(self, x: Float[Tensor, "N G L K"]) -> Float[Tensor, "N H L K"]:
        """Return keys or values with one head for each head of queries."""
        groups = self.num_heads // self.num_kv_heads
        return x if groups == 1 else repeat_heads(x, groups)

    def apply_window(self, mask: masks.Mask | None, keys: int) -> masks.Mask | None:
        """Return the mask with the window of this layer, if it has one."""
        if self.window is None:
            return mask
        return masks.window(keys, self.window) if mask is None else mask.with_window(self.window)

    def extra_repr(self) -> str:
        window = "" if self.window is None else f", window={self.window}"
        shared = "" if self.num_kv_heads == self.num_heads else f", num_kv_heads={self.num_kv_heads}"
        return f"num_heads={self.num_heads}{shared}, drop_prob={self.drop_prob}{window}"


class CrossAttention(nn.Module):
    """Multi-head attention from one sequence to another: queries come from x, keys and values from the memory.

    Equation: MultiHead(X, Y) = Concat(Z_1, …, Z_h) W_O + b_O, Z_i = softmax(Q_i K_iᵀ / √d_k + M) V_i
    Source: Sections 3.2.2 and 3.2.3 of "Attention Is All You Need"; Q = X W_Q + b_Q, [K; V] = Y W_KV + b_KV

    Args:
        d_model: width D of both sequences.
        num_heads, drop_prob, bias, head_dim, scale: as in `MultiHeadAttention`.

    Raises:
        ValueError: as in `MultiHeadAttention`; in `forward`, a batch of x that is not a multiple of the memory's.

    The weights are initialized as in `torch.nn.MultiheadAttention`. `forward(x, memory, mask=None, cache=None)`: with a
    cache, the memory is projected at the first step only. Consecutive rows of x may share a row of the memory, for
    example the beams of a sentence: x (B n, L, D), memory (B, M, D), and a padding mask.

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
        self.head_dim = _head_dim(d_model, num_heads, head_dim, drop_prob)
        inner = num_heads * self.head_dim
        self.num_heads, self.drop_prob, self.scale = num_heads, drop_prob, scale
        self.out = nn.Linear(inner, d_model, bias=bias)
        self.q, self.kv = _empty_linear(d_model, inner, bias), _empty_linear(d_model, 2 * inner, bias)
        # drawn together, as the single Xavier matrix [Q; K; V] of torch.nn
        weight = nn.init.xavier_uniform_(torch.empty(3 * inner, d_model))
        with torch.no_grad():
            self.q.weight.copy_(weight[:inner])
            self.kv.weight.copy_(weight[inner:])
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
        mask = self._check(x, memory, mask)
        if cache is None:
            k, v = self._project_memory(memory)
        else:
            k, v = cache.get_or_compute(lambda: self._project_contiguous(memory))
        q = fold_rows(split_heads(self.q(x), self.num_heads), k)
        drop_prob = self.drop_prob if self.training else 0.0
        z = scaled_dot_product_attention(q, k, v, mask, drop_prob=drop_prob, scale=self.scale)
        output: Tensor = self.out(merge_heads(z))
        return output.reshape(*x.shape[:2], -1)

    def _check(self, x: Tensor, memory: Tensor, mask: MaskLike) -> masks.Mask | None:
        """Check the shapes and return the mask over the queries of rows that share a row of the memory."""
        if x.ndim != 3 or memory.ndim != 3:
            raise ValueError(
                f"Expected x and memory of shape (batch, length, d_model), got {tuple(x.shape)} and "
                f"{tuple(memory.shape)}."
            )
        rows, length, batch, keys = x.shape[0], x.shape[1], memory.shape[0], memory.shape[1]
        if not batch or rows % batch:
            raise ValueError(f"{rows} rows attend to a memory of {batch}; expected as many, or a multiple of it")
        sharing = rows // batch
        only_padding = isinstance(mask, masks.Mask) and mask.only_padding
        queries = sharing * length if only_padding else length
        checked = as_mask(mask, batch=batch, heads=self.num_heads, queries=queries, keys=keys)
        if sharing > 1 and checked is not None and not checked.only_padding:
            raise ValueError(f"{sharing} rows share each row of the memory, which takes a mask that is padding alone")
        return checked

    def _project_contiguous(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values with each head contiguous in memory, as every decoding step reads them."""
        k, v = self._project_memory(memory)
        return k.contiguous(), v.contiguous()

    def _project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (split_heads(part, self.num_heads) for part in self.kv(memory).chunk(2, dim=-1))
        return k, v

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, drop_prob={self.drop_prob}"


def fold_rows(q: Float[Tensor, "N H L K"], k: Float[Tensor, "B H M K"]) -> Float[Tensor, "B H Q K"]:
    """Return the queries of consecutive rows that share a row of keys as queries of that row, without a copy."""
    sharing = q.shape[0] // max(1, k.shape[0])
    return q.reshape(-1, sharing, *q.shape[1:]).transpose(1, 2).flatten(2, 3) if sharing > 1 else q


class RelativePositionBias(nn.Module):
    """Relative position bias: a learned number for each head and bucket of distances, added to the scaled scores.

    Equation: S′ = S + B_h(b(j − i))
    Source: Raffel et al. 2020, "T5", Section 2.1; Song et al. 2020, "MPNet"

    Args:
        num_buckets: number of buckets.
        num_heads: attention heads H.
        max_distance: distances from here on share the last bucket.
        bidirectional: whether each direction has half of the buckets; False uses all for earlier keys (decoders).

    Raises:
        ValueError: too few buckets, or a max_distance within the distances that have a bucket each.

    `forward(queries, keys)` returns (1, H, queries, keys); the last query is at the last key.
    """

    def __init__(
        self, num_buckets: int, num_heads: int, *, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        exact = num_buckets // (4 if bidirectional else 2)
        if exact < 1 or max_distance <= exact:
            raise ValueError(
                f"relative biases need {4 if bidirectional else 2} buckets or more, and a max_distance beyond the "
                f"{exact} distances with a bucket each; got num_buckets={num_buckets}, max_distance={max_distance}"
            )
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.weight)

    def forward(self, queries: int, keys: int) -> Float[Tensor, "1 H L M"]:
        buckets = positions.relative_buckets(
            queries,
            keys,
            self.weight.shape[0],
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
            device=self.weight.device,
        )
        return self.weight[buckets].permute(2, 0, 1)[None]


class LinearPositionBias(nn.Module):
    """Linear position bias (ALiBi), symmetric: scores fall with the distance, at another rate in each head.

    Equation: S′ = S + B_h(i, j), B_h(i, j) = −m_h |j − i|
    Source: Press et al. 2022, "Train Short, Test Long"; symmetric in Günther et al. 2023, "Jina Embeddings 2"

    Args:
        num_heads: attention heads H.

    `forward(queries, keys)` returns (1, H, queries, keys); the last query is at the last key. There are no weights.
    """

    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(positions.alibi_slopes(num_heads)), persistent=False)

    def forward(self, queries: int, keys: int) -> Float[Tensor, "1 H L M"]:
        return positions.linear_biases(self.slopes, queries, keys)


def _head_dim(d_model: int, num_heads: int, head_dim: int | None, drop_prob: float) -> int:
    """Return the width of a head, after checking the sizes."""
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
    """Return a linear layer with uninitialized weights."""
    empty = nn.Linear(inputs, outputs, bias=bias, device="meta")
    return empty.to_empty(device=torch.get_default_device())
