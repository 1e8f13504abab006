"""Multi-head self-attention."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations import attention, masks, positions
from clearhead.equations.fused import fused_scaled_dot_product
from clearhead.equations.masks import MaskLike


class Rotary(nn.Module):
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

    def forward(self, x: Float[Tensor, "B H L K"], mask: masks.Mask | None = None) -> Float[Tensor, "B H L K"]:
        # the product of a turned query and key depends on their distance alone: padding on the left needs no care
        place_L = torch.arange(x.shape[2], device=x.device)
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
        rotary_theta: turn queries and keys by rotary positions with this base; None for none.
        window: attend only to keys at most this far away; None for all.

    Raises:
        ValueError: d_model is not divisible by num_heads; in `forward`, a mask of a wrong shape or dtype.

    The three projections are one matrix, [Q; K; V], and weights are drawn, as in `torch.nn.MultiheadAttention`.

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
        rotary_theta: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(
                f"d_model must be divisible by num_heads, so that each head gets d_model / num_heads columns; "
                f"got d_model={d_model}, num_heads={num_heads}"
            )
        if not 0.0 <= drop_prob < 1.0:
            raise ValueError(f"drop_prob is a probability from 0 up to, not including, 1; got {drop_prob}")
        self.num_heads, self.drop_prob, self.window = num_heads, drop_prob, window
        # torch.nn draws the output projection first, and the fused one as a single Xavier matrix
        self.out = nn.Linear(d_model, d_model, bias=bias)
        empty = nn.Linear(d_model, 3 * d_model, bias=bias, device="meta")
        self.qkv = empty.to_empty(device=torch.get_default_device())
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
            nn.init.zeros_(self.out.bias)
        self.rotary = None if rotary_theta is None else Rotary(d_model // num_heads, rotary_theta)

    def forward(self, x: Float[Tensor, "B L D"], mask: MaskLike = None) -> Float[Tensor, "B L D"]:
        if x.ndim != 3:
            raise ValueError(f"attention takes (batch, length, d_model); got a shape of {tuple(x.shape)}")
        batch, length, _ = x.shape
        mask = self.local(masks.of(mask, batch=batch, heads=self.num_heads, queries=length, keys=length), length)
        q, k, v = (attention.split_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, dim=-1))
        if self.rotary is not None:
            q, k = self.rotary(q, mask), self.rotary(k, mask)
        drop_prob = self.drop_prob if self.training else 0.0
        values = fused_scaled_dot_product(q, k, v, mask, drop_prob=drop_prob)
        mixed: Tensor = self.out(attention.merge_heads(values))
        return mixed

    def local(self, mask: masks.Mask | None, length: int) -> masks.Mask | None:
        """The mask with this layer's window, if it has one."""
        if self.window is None or self.window >= length - 1:
            return mask
        if mask is not None and mask.lengths is not None:
            return replace(mask, window=self.window if mask.window is None else min(self.window, mask.window))
        near = masks.window(length, self.window)
        return near if mask is None else mask & near

    def extra_repr(self) -> str:
        window = "" if self.window is None else f", window={self.window}"
        return f"num_heads={self.num_heads}, drop_prob={self.drop_prob}{window}"


class RelativeBias(nn.Module):
    """A learned number for each head and each bucket of distances, added to the scaled scores of every layer.

    Equation: S′ = S + B_h(b(j − i))
    Source: Raffel et al. 2020, "T5", Section 2.1; Song et al. 2020, "MPNet"

    Args:
        num_buckets: buckets of distances, half for each direction.
        num_heads: attention heads H.
    """

    def __init__(self, num_buckets: int, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.weight)

    def forward(self, length: int) -> Float[Tensor, "1 H L M"]:
        buckets = positions.relative_buckets(length, self.weight.shape[0], device=self.weight.device)
        return self.weight[buckets].permute(2, 0, 1)[None]
