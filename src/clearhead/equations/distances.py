"""Disentangled attention: scores between the contents of tokens and their distances (DeBERTa)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def log_buckets(distance: Int[Tensor, "*shape"], buckets: int, max_distance: int) -> Int[Tensor, "*shape"]:
    """Return the bucket of each distance: near distances have their own, and far ones share buckets of growing width.

    Equation: b(d) = d where |d| ≤ m, else sign(d) (m + ⌈ln(|d|/m) / ln((D−1)/m) · (m − 1)⌉), m = ⌊k/2⌋
    Source: He et al. 2021, "DeBERTa", in the authors' code of version 2; k is the number of buckets on each side, D
        max_distance

    Args:
        distance: i − j for query i and key j.
        buckets: number of buckets k on each side, at least 2.
        max_distance: the distance that gets the last bucket, above m + 1.

    >>> import torch
    >>> log_buckets(torch.tensor([-2, 0, 2, 9, 63]), 8, 64).tolist()
    [-2, 0, 2, 5, 7]
    """
    middle = buckets // 2
    # as in the authors' code: the logarithms are in float32, and their quotient is rounded up
    far = torch.where(distance.abs() < middle, max(middle - 1, 1), distance.abs())
    width = torch.log(torch.tensor((max_distance - 1) / middle, device=distance.device))
    steps = torch.ceil(torch.log(far / middle) / width * (middle - 1)) + middle
    return torch.where(far <= middle, distance, (steps * distance.sign()).long())


def distance_index(
    length: int, buckets: int, *, max_distance: int | None = None, device: torch.device | None = None
) -> Int[Tensor, "L L"]:
    """Return the row of the table of distances for each query i and key j.

    Equation: δ(i, j) = min(max(b(i − j) + k, 0), 2k − 1)
    Source: He et al. 2021, "DeBERTa", equation 3; b(d) = d in its first version, `log_buckets` in the second

    Args:
        length: number of tokens.
        buckets: number of buckets k on each side.
        max_distance: as in `log_buckets`; None where each distance has its own bucket.
        device: device of the result.

    >>> distance_index(3, 2).tolist()
    [[2, 1, 0], [3, 2, 1], [3, 3, 2]]
    """
    position_L = torch.arange(length, device=device)
    distance_LL = position_L[:, None] - position_L[None, :]
    if max_distance is not None:
        distance_LL = log_buckets(distance_LL, buckets, max_distance)
    return (distance_LL + buckets).clamp(0, 2 * buckets - 1)


def distance_scores(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H L K"],
    distance_q: Float[Tensor, "1 H R K"] | None,
    distance_k: Float[Tensor, "1 H R K"] | None,
    index: Int[Tensor, "L L"],
) -> Float[Tensor, "B H L L"]:
    """Return the unscaled scores between contents and distances, which are added to the scores between contents.

    Equation: S_ij = Q_i · K^r_δ(i,j) + K_j · Q^r_δ(i,j)
    Source: He et al. 2021, "DeBERTa", equation 4; in the authors' code, both terms have δ(i, j)

    Args:
        q, k: queries and keys of the contents.
        distance_q: queries of the distances Q^r; None without the second term.
        distance_k: keys of the distances K^r; None without the first term.
        index: δ(i, j), a row of distance_q and distance_k.
    """
    batch, heads, length, _ = q.shape
    scores = q.new_zeros(batch, heads, length, length)
    if distance_k is not None:  # content to position
        scores = scores + torch.gather(q @ distance_k.mT, 3, index.expand_as(scores))
    if distance_q is not None:  # position to content
        scores = scores + torch.gather(k @ distance_q.mT, 3, index.T.expand_as(scores)).mT
    return scores
