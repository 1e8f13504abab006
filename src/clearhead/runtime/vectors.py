"""Pool hidden states into finite vectors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True)
class EncodeOptions:
    """Options of `TextEncoder.encode` as a value."""

    pooling: Pooling | Literal["tokens"] | None = None
    normalize: bool | None = None
    max_length: int | None = None
    batch_tokens: int | None = None
    prompt: str | None = None
    truncate_dim: int | None = None


@dataclass(frozen=True)
class EncodedBatch:
    """Texts of a stream, with their vectors.

    Args:
        texts: the texts.
        vectors: float32 (n, d), one for each text.
        num_tokens: number of tokens of all texts, including special tokens.
        num_truncated: number of truncated texts.
    """

    texts: list[str]
    vectors: Vectors
    num_tokens: int
    num_truncated: int


def token_vectors(
    batches: Iterator[HiddenStates], num_texts: int, width: int, finish: Callable[[Tensor], Tensor]
) -> list[Vectors]:
    """Return the vectors (length, d) of the tokens of each text.

    Args:
        batches: batches of hidden states.
        num_texts: number of texts.
        width: number of columns d of a vector.
        finish: truncates and normalizes vectors.

    Raises:
        NonFiniteError: the vectors of a text hold NaN or infinity.
    """
    rows: list[Vectors] = [np.empty((0, width), np.float32)] * num_texts
    for indices, hidden, keep in batches:
        for index, row, kept in zip(indices, hidden, keep, strict=True):
            rows[index] = finish(row[kept]).cpu().numpy()
            check_finite(rows[index][None], "vectors", [index])
    return rows


def pooled_vectors(
    batches: Iterator[HiddenStates], vectors: Vectors, skip: int, pooling: Pooling, finish: Callable[[Tensor], Tensor]
) -> Vectors:
    """Fill in one vector for each text, from its pooled hidden states.

    Args:
        batches: batches of hidden states.
        vectors: float32 (n, d), a row for each text.
        skip: number of tokens at the start of each text that are not pooled.
        pooling: as in `pool`.
        finish: truncates and normalizes vectors.

    Raises:
        NonFiniteError: a vector holds NaN or infinity.
    """
    on_device: list[tuple[list[int], Tensor]] = []
    for indices, hidden, keep in batches:
        after_prompt = torch.arange(keep.shape[1], device=keep.device) >= skip
        pooled = finish(pool(hidden.float(), keep & after_prompt, pooling))
        if pooled.device.type == "cpu":  # a vector kept between large blocks would prevent the reuse of their memory
            vectors[indices] = _checked(pooled, indices)
        else:
            on_device.append((indices, pooled))
    for indices, pooled in on_device:  # copied at the end: an accelerator computes while the next batch is prepared
        vectors[indices] = _checked(pooled, indices)
    return vectors


def _checked(pooled: Tensor, indices: Sequence[int]) -> Vectors:
    vectors: Vectors = pooled.cpu().numpy()
    check_finite(vectors, "vector", indices)
    return vectors


def normalized(vectors: Tensor) -> Tensor:
    """Scale vectors to length 1; NaN where the norm overflows, because x / ∞ would be a vector of zeros.

    Equation: v / max(‖v‖, 10⁻¹²)
    Source: torch.nn.functional.normalize
    """
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-12)
    scaled: Tensor = vectors / norms.masked_fill(norms.isinf(), torch.nan)
    return scaled
