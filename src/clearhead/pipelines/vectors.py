"""Hidden states to finite vectors."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.finite import check_finite
from clearhead.models.config import Pooling
from clearhead.models.heads import pool

Vectors = NDArray[np.float32]

HiddenStates = tuple[list[int], Tensor, Tensor]
"""Indices of texts, their hidden states (B, L, D) and the (B, L) mask of real tokens."""


def token_vectors(
    runs: Iterator[HiddenStates], texts: int, width: int, finish: Callable[[Tensor], Tensor]
) -> list[Vectors]:
    """Return the vectors (length, d) of the tokens of each text.

    Args:
        runs: batches of hidden states.
        texts: number of texts.
        width: columns d of a vector.
        finish: cuts and normalizes vectors.

    Raises:
        NonFiniteError: the vectors of a text hold NaN or infinity.
    """
    rows: list[Vectors] = [np.empty((0, width), np.float32)] * texts
    for indices, hidden, keep in runs:
        for index, row, kept in zip(indices, hidden, keep, strict=True):
            rows[index] = finish(row[kept]).cpu().numpy()
            check_finite(rows[index][None], "vectors", [index])
    return rows


def pooled_vectors(
    runs: Iterator[HiddenStates], vectors: Vectors, skip: int, pooling: Pooling, finish: Callable[[Tensor], Tensor]
) -> Vectors:
    """Fill in one vector a text, from its pooled hidden states.

    Args:
        runs: batches of hidden states.
        vectors: float32 (n, d), a row for each text.
        skip: tokens at the start of each text that are left out.
        pooling: as in `pool`.
        finish: cuts and normalizes vectors.

    Raises:
        NonFiniteError: a vector holds NaN or infinity.
    """
    later: list[tuple[list[int], Tensor]] = []
    for indices, hidden, keep in runs:
        after_prompt = torch.arange(keep.shape[1], device=keep.device) >= skip
        pooled = finish(pool(hidden.float(), keep & after_prompt, pooling))
        if pooled.device.type == "cpu":  # a batch kept among large blocks would stop their memory from being reused
            vectors[indices] = _checked(pooled, indices)
        else:
            later.append((indices, pooled))
    for indices, pooled in later:  # an accelerator computes while the next batch is prepared
        vectors[indices] = _checked(pooled, indices)
    return vectors


def _checked(pooled: Tensor, indices: Sequence[int]) -> Vectors:
    found: Vectors = pooled.cpu().numpy()
    check_finite(found, "vector", indices)
    return found


def normalized(vectors: Tensor) -> Tensor:
    """Scale vectors to length 1; NaN where the norm overflows, for x / ∞ would be a vector of zeros.

    Equation: v / max(‖v‖, 10⁻¹²)
    Source: torch.nn.functional.normalize
    """
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-12)
    scaled: Tensor = vectors / norms.masked_fill(norms.isinf(), torch.nan)
    return scaled
