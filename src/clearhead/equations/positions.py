"""Where a token stands: sinusoids that are added, and rotations of queries and keys."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sinusoids(length: int, d_model: int) -> Float[Tensor, "length d_model"]:
    """A sine and a cosine for each pair of columns, with wavelengths from 2π to 10000 · 2π.

    Equation: PE(i, 2j) = sin(i / 10000^(2j/d)), PE(i, 2j+1) = cos(i / 10000^(2j/d))
    Source: Section 3.5. An odd d_model ends with a sine

    >>> from clearhead.equations.positions import sinusoids
    >>> sinusoids(5000, 512).shape
    torch.Size([5000, 512])
    """
    position_L1 = torch.arange(length, dtype=torch.float64)[:, None]
    even_J = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle_LJ = position_L1 * torch.exp(even_J * (-math.log(10000.0) / d_model))
    pairs_LJ2 = torch.stack([angle_LJ.sin(), angle_LJ.cos()], dim=-1)
    return pairs_LJ2.flatten(1)[:, :d_model].float()


def add_positions(x: Float[Tensor, "B L D"], pe: Float[Tensor, "*B L D"]) -> Float[Tensor, "B L D"]:
    """The embedded tokens, each with its position's vector added.

    Equation: X′ = X + PE
    Source: Section 3.5
    """
    return x + pe


def rotary_angles(
    positions: Int[Tensor, "*B L"], width: int, theta: float = 10000.0, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*B L half"]:
    """By how much each pair of columns of a head turns at each position, in radians.

    Equation: φ(i, j) = i · θ^(−2j/d_k)
    Source: Su et al. 2021, "RoFormer", Section 3.2.2

    Args:
        positions: places in the text.
        width: d_k.
        theta: base of the wavelengths.
        dtype: of the angles. Pretrained models have seen angles of float32, which at position 8,000 are off by up to
            2e-4; exact ones would be others than theirs.
    """
    exponent_J = torch.arange(0, width, 2, dtype=dtype, device=positions.device) / width
    return positions[..., None].to(dtype) * (1.0 / theta**exponent_J)


def rotate(x: Float[Tensor, "B H L K"], angles: Float[Tensor, "*B L half"]) -> Float[Tensor, "B H L K"]:
    """Each pair of columns (j, j + d_k/2) turned by its angle, so that q · k depends on the distance alone.

    Equation: x′_j = x_j cos φ − x_{j+d_k/2} sin φ, x′_{j+d_k/2} = x_{j+d_k/2} cos φ + x_j sin φ
    Source: Su et al. 2021, "RoFormer", Section 3.4.2, with the pairs laid out as two halves
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    heads = angles.unsqueeze(-3)
    cos, sin = heads.cos().to(exact), heads.sin().to(exact)
    first, second = x.to(exact).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def relative_buckets(
    length: int, num_buckets: int, *, max_distance: int = 128, device: torch.device | None = None
) -> Int[Tensor, "L M"]:
    """Which learned bias each pair of positions gets: near distances one each, far ones shared, by direction.

    Equation: b(d) = d where d < n, else n + ⌊ln(d/n) / ln(D/n) · n⌋ up to 2n − 1, d = |j − i|; + 2n where j > i
    Source: Raffel et al. 2020, "T5", Section 2.1, in the authors' code; n is a quarter of the buckets, D max_distance

    Args:
        length: L = M, the length of the text.
        num_buckets: all buckets, half for each direction.
        max_distance: from here on all distances share the last bucket.
    """
    place = torch.arange(length, device=device)
    ahead_LM = place[None, :] - place[:, None]
    distance = ahead_LM.abs()
    half, exact = num_buckets // 2, num_buckets // 4
    # the clamp keeps ln(0) out of entries that the other branch fills
    scaled = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (half - exact)
    far = (exact + scaled.long()).clamp(max=half - 1)
    return torch.where(distance < exact, distance, far) + half * (ahead_LM > 0)


def positions_after_padding(ids: Int[Tensor, "B L"], pad_id: int) -> Int[Tensor, "B L"]:
    """Positions as RoBERTa counts them: over the ids that are not padding's, from pad_id + 1; padding's own is pad_id.

    Equation: p_i = pad_id + [ids_i ≠ pad_id] · Σ_{j ≤ i} [ids_j ≠ pad_id]
    Source: Liu et al. 2019, "RoBERTa", in the authors' code
    """
    real = ids != pad_id
    return pad_id + real.cumsum(dim=1) * real
