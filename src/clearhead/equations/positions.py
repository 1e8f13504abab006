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


def rotary_angles(positions: Int[Tensor, "*B L"], width: int, theta: float = 10000.0) -> Float[Tensor, "*B L half"]:
    """By how much each pair of columns of a head turns at each position, in radians.

    Equation: φ(i, j) = i · θ^(−2j/d_k)
    Source: Su et al. 2021, "RoFormer", Section 3.2.2
    """
    exponent_J = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    return (positions[..., None] * theta**-exponent_J).float()


def rotate(x: Float[Tensor, "B H L K"], angles: Float[Tensor, "*B L half"]) -> Float[Tensor, "B H L K"]:
    """Each pair of columns (j, j + d_k/2) turned by its angle, so that q · k depends on the distance alone.

    Equation: x′_j = x_j cos φ − x_{j+d_k/2} sin φ, x′_{j+d_k/2} = x_{j+d_k/2} cos φ + x_j sin φ
    Source: Su et al. 2021, "RoFormer", Section 3.4.2, with the pairs laid out as two halves
    """
    heads = angles.unsqueeze(-3)
    cos, sin = heads.cos(), heads.sin()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
