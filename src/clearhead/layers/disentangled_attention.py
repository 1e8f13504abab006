"""Disentangled attention (DeBERTa), and the convolution beside the first layer of its large models."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.equations import distances as equations
from clearhead.equations.attention import merge_heads, split_heads
from clearhead.equations.masks import Mask, MaskLike, as_mask
from clearhead.kernels.attention import scaled_dot_product_attention
from clearhead.layers.feedforward import get_activation
from clearhead.layers.norm import LayerNorm

DistanceTerms = Literal["c2p", "p2c", "both"]
"""Scores between content and position, between position and content, or both."""


@dataclass(frozen=True, kw_only=True)
class DistanceOptions:
    """Options of disentangled attention.

    Args:
        terms: "c2p" (content to position), "p2c" (position to content) or "both".
        buckets: number of distance buckets k on each side.
        max_distance: the distance that gets the last bucket, where far distances share buckets; None where each
            distance has its own.
        norm: whether a layer norm follows the table of distances.
        shared: whether the projections of the contents also project the distances.

    Raises:
        ValueError: too few buckets, or a max_distance within the distances that have a bucket each.
    """

    terms: DistanceTerms = "both"
    buckets: int
    max_distance: int | None = None
    norm: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        if self.buckets < (1 if self.max_distance is None else 2):
            raise ValueError(f"distances need 1 bucket or more, and 2 with a max_distance; got {self.buckets}")
        if self.max_distance is not None and self.max_distance - 1 <= self.buckets // 2:
            raise ValueError(
                f"max_distance must exceed the {self.buckets // 2} distances with a bucket each by 2 or more; got "
                f"{self.max_distance}"
            )

    @property
    def num_scores(self) -> int:
        """The number of scores that are added: content to content, and one or two with positions."""
        return 3 if self.terms == "both" else 2


@dataclass(frozen=True, eq=False)
class Distances:
    """The distances of a batch.

    Args:
        vectors: one vector for each bucket that occurs (R, D).
        index: the row of `vectors` for each query and key of the longest text (L, L).
    """

    vectors: Float[Tensor, "R D"]
    index: Int[Tensor, "L L"]


class DistanceEmbedding(nn.Module):
    """The table of distances: one trained vector for each bucket on both sides, shared by all layers.

    Equation: δ(i, j) = min(max(b(i − j) + k, 0), 2k − 1)
    Source: He et al. 2021, "DeBERTa", equation 3

    Args:
        d_model: width D of a vector.
        options: number of buckets, and whether a norm follows.
        eps: ε of the norm.
        drop_prob: dropout of the vectors.

    `forward(length)` returns the `Distances` of texts of up to this length.
    """

    def __init__(self, d_model: int, options: DistanceOptions, *, eps: float, drop_prob: float) -> None:
        super().__init__()
        self.options = options
        self.weight = nn.Parameter(torch.empty(2 * options.buckets, d_model))
        nn.init.normal_(self.weight)
        self.norm = LayerNorm(d_model, eps) if options.norm else None
        self.dropout = nn.Dropout(drop_prob)

    def forward(self, length: int) -> Distances:
        buckets, limit = self.options.buckets, self.options.max_distance
        index = equations.distance_index(length, buckets, max_distance=limit, device=self.weight.device)
        vectors: Tensor = self.weight
        if not torch.compiler.is_compiling():  # short texts use few rows; compiled code cannot depend on their number
            farthest = torch.tensor(max(length - 1, 0))
            last = int(farthest if limit is None else equations.log_buckets(farthest, buckets, limit))
            first, stop = max(buckets - last, 0), min(buckets + last + 1, 2 * buckets)
            index, vectors = index - first, vectors[first:stop]
        vectors = vectors if self.norm is None else self.norm(vectors)
        return Distances(self.dropout(vectors), index)

    def extra_repr(self) -> str:
        return f"{self.options.terms}, buckets={self.options.buckets}, max_distance={self.options.max_distance}"


class DisentangledAttention(nn.Module):
    """Disentangled self-attention: scores from contents, and scores between contents and distances.

    Equation: A_ij = (Q_i · K_j + Q_i · K^r_δ(i,j) + K_j · Q^r_δ(i,j)) / √(3 d_k), Z = softmax(A + M) V
    Source: He et al. 2021, "DeBERTa", equation 4. With one of the last two terms, the divisor is √(2 d_k)

    Args:
        d_model: width D of x.
        num_heads: heads H; d_k = d_model / num_heads.
        options: the terms, and whether [Q; K; V] also projects the distances.
        drop_prob: dropout of the attention weights.

    Raises:
        ValueError: d_model is not divisible by num_heads; in `forward`, a mask of a wrong shape or dtype.

    `forward(x, mask, distances)` maps x (B, L, D) to (B, L, D). The distances come from a `DistanceEmbedding`. Packed
    texts are computed one length at a time, because their scores depend on both content and position.

    >>> import torch; from clearhead.layers.disentangled_attention import (
    ...     DisentangledAttention, DistanceEmbedding, DistanceOptions)
    >>> options = DistanceOptions(buckets=4)
    >>> distances = DistanceEmbedding(8, options, eps=1e-7, drop_prob=0.1)(5)
    >>> DisentangledAttention(8, 2, options)(torch.rand(1, 5, 8), None, distances).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, d_model: int, num_heads: int, options: DistanceOptions, *, drop_prob: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"d_model must be divisible by num_heads; got d_model={d_model}, num_heads={num_heads}")
        self.options, self.num_heads, self.drop_prob = options, num_heads, drop_prob
        self.head_dim = d_model // num_heads
        self.scale = (options.num_scores * self.head_dim) ** -0.5
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        own = not options.shared
        self.distance_k = nn.Linear(d_model, d_model) if own and options.terms != "p2c" else None
        self.distance_q = nn.Linear(d_model, d_model) if own and options.terms != "c2p" else None

    def forward(self, x: Float[Tensor, "B L D"], mask: MaskLike, distances: Distances) -> Float[Tensor, "B L D"]:
        if x.ndim != 3:
            raise ValueError(f"Expected x of shape (batch, length, d_model), got {tuple(x.shape)}.")
        batch, length, _ = x.shape
        mask = as_mask(mask, batch=batch, heads=self.num_heads, queries=length, keys=length)
        q, k, v = (split_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, dim=-1))
        projected = self.project(distances)
        if mask is None or mask.lengths is None:
            z = self._attend(q, k, v, mask, projected, distances.index)
        else:
            z = self._attend_packed(q, k, v, mask, projected, distances.index)
        output: Tensor = self.out(merge_heads(z))
        return output

    def project(self, distances: Distances) -> tuple[Tensor | None, Tensor | None]:
        """Return queries and keys of the distances, each (1, H, R, d_k), or None where no term has them."""
        vectors, terms = distances.vectors[None], self.options.terms
        q: Tensor | None
        k: Tensor | None
        if self.options.shared:
            q, k, _ = self.qkv(vectors).chunk(3, dim=-1)
            q, k = None if terms == "c2p" else q, None if terms == "p2c" else k
        else:
            q = None if self.distance_q is None else self.distance_q(vectors)
            k = None if self.distance_k is None else self.distance_k(vectors)
        return (
            None if q is None else split_heads(q, self.num_heads),
            None if k is None else split_heads(k, self.num_heads),
        )

    def distance_bias(
        self, q: Float[Tensor, "B H L K"], k: Float[Tensor, "B H L K"], distances: Distances
    ) -> Float[Tensor, "B H L L"]:
        """Return what the distances add to the scaled scores of queries and keys."""
        return self._bias(q, k, self.project(distances), distances.index)

    def _bias(self, q: Tensor, k: Tensor, projected: tuple[Tensor | None, Tensor | None], index: Tensor) -> Tensor:
        length = q.shape[2]
        scores: Tensor = equations.distance_scores(q, k, *projected, index[:length, :length]) * self.scale
        return scores

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask | None,
        projected: tuple[Tensor | None, Tensor | None],
        index: Tensor,
    ) -> Tensor:
        bias = Mask(length=k.shape[2], bias=self._bias(q, k, projected, index))
        drop_prob = self.drop_prob if self.training else 0.0
        return scaled_dot_product_attention(
            q, k, v, bias if mask is None else mask & bias, drop_prob=drop_prob, scale=self.scale
        )

    def _attend_packed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        projected: tuple[Tensor | None, Tensor | None],
        index: Tensor,
    ) -> Tensor:
        """Attend within each packed text, to each run of texts of equal length at once."""
        values, start = torch.empty_like(v), 0
        for length, run in itertools.groupby(mask.lengths or ()):
            count = sum(1 for _ in run)
            places = slice(start, start + count * length)

            def as_texts(x_1HTK: Tensor, places: slice = places, count: int = count) -> Tensor:
                heads, _, width = (part := x_1HTK[0, :, places]).shape
                return part.reshape(heads, count, -1, width).transpose(0, 1)

            if length:
                inner = _within(mask, length)
                z_NHLK = self._attend(as_texts(q), as_texts(k), as_texts(v), inner, projected, index)
                values[0, :, places] = z_NHLK.transpose(0, 1).flatten(1, 2)
            start = places.stop
        return values

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, drop_prob={self.drop_prob}, {self.options.terms}"


@dataclass(frozen=True, kw_only=True)
class ConvolutionOptions:
    """Options of the convolution beside the first layer.

    Args:
        width: width of the kernel, an odd number of tokens.
        groups: number of groups of channels.
        activation: as in `get_activation`.

    Raises:
        ValueError: an even width.
    """

    width: int
    groups: int = 1
    activation: str = "tanh"

    def __post_init__(self) -> None:
        if self.width < 1 or not self.width % 2:
            raise ValueError(f"the width of a convolution must be odd; got {self.width}")


class ConvolutionalResidual(nn.Module):
    """A convolution over the input of a layer, added to its output.

    Equation: Z′ = LN(Z + act(drop(conv(X) + b)))
    Source: He et al. 2021, "DeBERTa", in the authors' code of version 2

    Args:
        d_model: width D of x and z.
        options: width, groups and activation.
        eps: ε of the norm.
        drop_prob: dropout of the convolution.

    Raises:
        ValueError: d_model is not divisible by the groups.

    `forward(x, z, mask=None)`: x (B, L, D) is the input of the layer, and z its output. Padding counts as zeros, and
    packed texts do not see each other.
    """

    def __init__(self, d_model: int, options: ConvolutionOptions, *, eps: float, drop_prob: float) -> None:
        super().__init__()
        self.radius = options.width // 2
        self.conv = nn.Conv1d(d_model, d_model, options.width, padding=self.radius, groups=options.groups)
        self.activation = get_activation(options.activation)
        self.dropout = nn.Dropout(drop_prob)
        self.norm = LayerNorm(d_model, eps)

    def forward(
        self, x: Float[Tensor, "B L D"], z: Float[Tensor, "B L D"], mask: Mask | None = None
    ) -> Float[Tensor, "B L D"]:
        if mask is not None and mask.keep_BM is not None:
            x = x.masked_fill(~mask.keep_BM[:, :, None], 0.0)
        packed = mask is not None and mask.lengths is not None
        y = self._convolve_packed(x, mask.lengths or ()) if mask is not None and packed else self._convolve(x)
        normal: Tensor = self.norm(z + self.activation(self.dropout(y)).to(z.dtype))
        return normal

    def _convolve(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x.mT).mT
        return y

    def _convolve_packed(self, x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Convolve with zeros between the texts, as many as a kernel reaches."""
        text_T = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        place_T = (torch.arange(x.shape[1]) + self.radius * text_T).to(x.device)
        apart = x.new_zeros(1, x.shape[1] + self.radius * len(lengths), x.shape[2])
        return self._convolve(apart.index_copy(1, place_T, x))[:, place_T]


def with_distances(attention: nn.Module, mask: MaskLike, distances: Distances | None) -> Callable[[Tensor], Tensor]:
    """Return the self-attention of a layer as a sub-layer: a function of x."""
    if distances is None:
        return lambda x: attention(x, mask)
    return lambda x: attention(x, mask, distances)


def _within(mask: Mask, length: int) -> Mask | None:
    """Return the conditions of a packed mask within each of its texts of some length."""
    bias = mask.bias
    if bias is not None:
        bias = bias[..., : length if bias.shape[-2] > 1 else 1, : length if bias.shape[-1] > 1 else 1]
    inner = Mask(length=length, causal=mask.causal, window=mask.window, bias=bias)
    return None if inner.allows_all else inner
