"""Positions: sinusoids, rotary positions and buckets of relative positions."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sinusoids(length: int, d_model: int) -> Float[Tensor, "length d_model"]:
    """Return sinusoidal positions: sine and cosine column pairs, with wavelengths from 2π to 10000 · 2π.

    Equation: PE(i, 2j) = sin(i / 10000^(2j/d)), PE(i, 2j+1) = cos(i / 10000^(2j/d))
    Source: Section 3.5. An odd d_model ends with a sine

    >>> from clearhead.equations.positions import sinusoids
    >>> sinusoids(5000, 512).shape
    torch.Size([5000, 512])
    """
    position_L1 = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]
    even_J = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu")
    angle_LJ = position_L1 * torch.exp(even_J * (-math.log(10000.0) / d_model))
    pairs_LJ2 = torch.stack([angle_LJ.sin(), angle_LJ.cos()], dim=-1)
    return pairs_LJ2.flatten(1)[:, :d_model].float()


def concatenated_sinusoids(
    length: int, d_model: int, *, last: bool = False, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "length d_model"]:
    """Return sinusoidal positions in two halves, all sines and then all cosines, as in Marian and fairseq.

    Equation: PE(i, j) = sin(a), PE(i, ⌈d/2⌉ + j) = cos(a), a = i / 10000^(j/n), n = d/2 or d/2 − 1
    Source: Junczys-Dowmunt et al. 2018, "Marian", and Ott et al. 2019, "fairseq", in the authors' code

    Args:
        length: number of positions.
        d_model: width D; an odd one has one more sine than cosines, and with `last` a final column of zeros.
        last: whether the longest wavelength, 10000 · 2π, is reached (fairseq) or only approached (Marian).
        dtype: dtype of the angles. Models of fairseq were trained with angles in float32.

    >>> from clearhead.equations.positions import concatenated_sinusoids
    >>> concatenated_sinusoids(1, 4)
    tensor([[0., 0., 1., 1.]])
    """
    half = d_model // 2 if last else (d_model + 1) // 2
    steps = half - 1 if last else d_model / 2
    index_J = torch.arange(half, dtype=dtype, device="cpu")
    angle_LJ = torch.arange(length, dtype=dtype, device="cpu")[:, None] * torch.exp(
        index_J * -(math.log(10000.0) / max(steps, 1))
    )
    both = torch.cat([angle_LJ.sin(), angle_LJ.cos()], dim=1)[:, :d_model]
    return torch.nn.functional.pad(both, (0, d_model - both.shape[1])).float()


def add_positions(x: Float[Tensor, "B L D"], pe: Float[Tensor, "*B L D"]) -> Float[Tensor, "B L D"]:
    """Add the vector of its position to each token embedding.

    Equation: X′ = X + PE
    Source: Section 3.5
    """
    return x + pe


def rotary_angles(
    positions: Int[Tensor, "*B L"],
    width: int,
    theta: float = 10000.0,
    *,
    factor: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*B L half"]:
    """Return the rotation angle of each column pair of a head at each position, in radians.

    Equation: φ(i, j) = i / s · θ^(−2j/d_k)
    Source: Su et al. 2021, "RoFormer", Section 3.2.2; s is the factor of Chen et al. 2023, "Extending Context Window of
        Large Language Models via Positional Interpolation", equation 4

    Args:
        positions: positions in the sequence.
        width: d_k.
        theta: base of the wavelengths.
        factor: s; above 1, positions are closer together than in training.
        dtype: dtype of the angles. Pretrained models were trained with float32 angles, which have an error of up to
            2e-4 at position 8,000; exact angles would differ from theirs.
    """
    exponent_J = torch.arange(0, width, 2, dtype=dtype, device=positions.device) / width
    return positions[..., None].to(dtype) * (1.0 / theta**exponent_J / factor)


def rotate(x: Float[Tensor, "B H L K"], angles: Float[Tensor, "*B L half"]) -> Float[Tensor, "B H L K"]:
    """Rotate each column pair (j, j + d_k/2) by its angle, so that q · k depends on the distance only.

    Equation: x′_j = x_j cos φ − x_{j+d_k/2} sin φ, x′_{j+d_k/2} = x_{j+d_k/2} cos φ + x_j sin φ
    Source: Su et al. 2021, "RoFormer", Section 3.4.2, with the pairs laid out as two halves
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    heads = angles.unsqueeze(-3)
    cos, sin = heads.cos().to(exact), heads.sin().to(exact)
    first, second = x.to(exact).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def relative_buckets(
    queries: int,
    keys: int,
    num_buckets: int,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
    device: torch.device | None = None,
) -> Int[Tensor, "L M"]:
    """Return the bucket of the learned bias for each query and key: near distances have their own, far ones share.

    Equation: b(d) = d where d < n, else n + ⌊ln(d/n) / ln(D/n) · n⌋ up to 2n − 1, d = |j − i|; + 2n where j > i
    Source: Raffel et al. 2020, "T5", Section 2.1, in the authors' code; n is a quarter of the buckets, D max_distance.
        Unidirectional: d = max(i − j, 0), n is half of the buckets, and nothing is added

    Args:
        queries: L; the last query is at the last key.
        keys: M.
        num_buckets: number of buckets; bidirectional, each direction has half of them.
        max_distance: distances from here on share the last bucket.
        bidirectional: False for a decoder, which never attends to later keys: these share bucket 0.
        device: device of the result.
    """
    key_M = torch.arange(keys, device=device)
    ahead_LM = key_M[None, :] - key_M[keys - queries :, None]
    distance = ahead_LM.abs() if bidirectional else (-ahead_LM).clamp(min=0)
    half = num_buckets // 2 if bidirectional else num_buckets
    exact = half // 2
    # the clamp avoids ln(0) in entries that the other branch fills
    scaled = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (half - exact)
    far = (exact + scaled.long()).clamp(max=half - 1)
    buckets = torch.where(distance < exact, distance, far)
    return buckets + half * (ahead_LM > 0) if bidirectional else buckets


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of each head's linear position bias: a geometric sequence from 2^(−8/n) to 2^(−8).

    Equation: m_h = 2^(−8h/n), h = 1 … n, n a power of 2
    Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases", Section 3, and the authors' code:
        for other n, those of the next lower power p, then every second one of 2p

    >>> from clearhead.equations.positions import alibi_slopes
    >>> alibi_slopes(2)
    [0.0625, 0.00390625]
    """
    power: int = 2 ** (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4.0 * head / power) for head in range(1, 2 * power + 1, 2)]
    return slopes + between[: num_heads - power]


def linear_biases(slopes: Float[Tensor, "H"], queries: int, keys: int) -> Float[Tensor, "1 H L M"]:
    """Return a bias for each head, query and key that falls with their distance, the same in both directions.

    Equation: B_h(i, j) = −m_h |j − i|
    Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases"; symmetric in Günther et al. 2023,
        "Jina Embeddings 2", Section 3

    Args:
        slopes: m_h, as from `alibi_slopes`.
        queries: L; the last query is at the last key.
        keys: M.
    """
    key_M = torch.arange(keys, device=slopes.device)
    distance_LM = (key_M[None, :] - key_M[keys - queries :, None]).abs()
    return -slopes[None, :, None, None] * distance_LM


def positions_after_padding(ids: Int[Tensor, "B L"], pad_id: int) -> Int[Tensor, "B L"]:
    """Return RoBERTa's positions: counted over ids other than padding, from pad_id + 1; padding gets pad_id.

    Equation: p_i = pad_id + [ids_i ≠ pad_id] · Σ_{j ≤ i} [ids_j ≠ pad_id]
    Source: Liu et al. 2019, "RoBERTa", in the authors' code
    """
    real = ids != pad_id
    return pad_id + real.cumsum(dim=1) * real
