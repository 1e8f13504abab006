"""Pool hidden states into finite vectors, and compare vectors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.finite import check_finite
from clearhead.models.config import Pooling
from clearhead.models.heads import pool
from clearhead.runtime.packed_batch import HiddenStates

Vectors = NDArray[np.float32]

AnyVectors = NDArray[Any] | Tensor | Sequence[NDArray[Any] | Tensor]
"""Vectors of any numeric type, in an array, a tensor or a list."""


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


def vector_width(d_model: int, truncate_dim: int | None) -> int:
    """Return the number of columns of a vector: d_model, or truncate_dim.

    Raises:
        ValueError: truncate_dim is below 1 or above d_model.
    """
    if truncate_dim is None:
        return d_model
    if truncate_dim < 1:
        raise ValueError(f"truncate_dim must be at least 1; got {truncate_dim}")
    if truncate_dim > d_model:
        raise ValueError(
            f"truncate_dim is {truncate_dim}, but this model's vectors have {d_model} columns; give {d_model} or less"
        )
    return truncate_dim


def token_vectors(batches: Iterator[HiddenStates], num_texts: int, width: int, *, normalize: bool) -> list[Vectors]:
    """Return the vectors (length, d) of the tokens of each text.

    Args:
        batches: batches of hidden states.
        num_texts: number of texts.
        width: number of columns d of a vector.
        normalize: whether to scale vectors to length 1.

    Raises:
        NonFiniteError: the vectors of a text hold NaN or infinity.
    """
    rows: list[Vectors] = [np.empty((0, width), np.float32)] * num_texts
    for indices, hidden, keep in batches:
        for index, row, kept in zip(indices, hidden, keep, strict=True):
            rows[index] = _finish(row[kept], width, normalize).cpu().numpy()
            check_finite(rows[index][None], "vectors", [index])
    return rows


def pooled_vectors(
    batches: Iterator[HiddenStates], num_texts: int, width: int, pooling: Pooling, *, normalize: bool, skip: int
) -> Vectors:
    """Return one vector (d) for each text, from its pooled hidden states.

    Args:
        batches, num_texts, width, normalize: as in `token_vectors`.
        pooling: as in `pool`.
        skip: number of tokens at the start of each text that are not pooled.

    Raises:
        NonFiniteError: a vector holds NaN or infinity.
    """
    vectors = np.empty((num_texts, width), np.float32)
    on_device: list[tuple[list[int], Tensor]] = []
    for indices, hidden, keep in batches:
        after_prompt = torch.arange(keep.shape[1], device=keep.device) >= skip
        pooled = _finish(pool(hidden.float(), keep & after_prompt, pooling), width, normalize)
        if pooled.device.type == "cpu":  # a vector kept between large blocks would prevent the reuse of their memory
            vectors[indices] = _checked(pooled, indices)
        else:
            on_device.append((indices, pooled))
    for indices, pooled in on_device:  # copied at the end: an accelerator computes while the next batch is prepared
        vectors[indices] = _checked(pooled, indices)
    return vectors


def _finish(vectors: Tensor, width: int, normalize: bool) -> Tensor:
    truncated = vectors[..., :width].float()
    return normalized(truncated) if normalize else truncated


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


def as_vectors(argument: object) -> Vectors | None:
    """Return vectors as a float32 array (d) or (n, d); None for anything else, such as texts."""
    if isinstance(argument, list | tuple) and argument and isinstance(argument[0], np.ndarray | Tensor):
        argument = torch.stack([torch.as_tensor(vector).float().cpu() for vector in argument])
    if isinstance(argument, Tensor):
        argument = argument.detach().float().cpu().numpy()
    if not isinstance(argument, np.ndarray) or argument.dtype.kind not in "fiu":
        return None
    return np.asarray(argument, np.float32)


def cosine_similarity(first: Vectors, second: Vectors) -> Vectors:
    """Return the cosine of each vector of one array with each vector of the other.

    Equation: cos(u, v) = u · v / (‖u‖ ‖v‖)

    Args:
        first: (n, d), or one vector (d).
        second: (m, d), or one vector (d).

    Returns:
        float32 (n, m). A single vector drops its dimension.

    Raises:
        ValueError: vectors of different widths, or arrays of another shape.

    >>> cosine_similarity(np.array([2.0, 0.0], np.float32), np.array([[4.0, 0.0], [0.0, 1.0]], np.float32))
    array([1., 0.], dtype=float32)
    """
    _check_widths(first, second)
    one, other = (normalized(torch.from_numpy(vectors)).numpy() for vectors in (first, second))
    return np.asarray(one @ other.T, dtype=np.float32)


def pairwise_cosine(first: Vectors, second: Vectors) -> Vectors:
    """Return the cosine of each vector of one array with the vector at the same index of the other.

    Args:
        first, second: (n, d), or one vector (d).

    Returns:
        float32 (n,), or a single number.

    Raises:
        ValueError: arrays of different shapes.

    >>> pairwise_cosine(np.array([2.0, 0.0], np.float32), np.array([4.0, 0.0], np.float32))
    array(1., dtype=float32)
    """
    _check_widths(first, second)
    if first.shape != second.shape:
        raise ValueError(f"expected as many vectors in both arguments, got {len(first)} and {len(second)}")
    one, other = (normalized(torch.from_numpy(vectors)).numpy() for vectors in (first, second))
    return np.asarray((one * other).sum(axis=-1), dtype=np.float32)


def _check_widths(first: Vectors, second: Vectors) -> None:
    for vectors in (first, second):
        if vectors.ndim not in (1, 2):
            raise ValueError(f"expected vectors (d,) or (n, d), got an array of shape {vectors.shape}")
    if first.shape[-1] != second.shape[-1]:
        raise ValueError(f"vectors of width {first.shape[-1]} cannot be compared with those of {second.shape[-1]}")
