"""Vectors in 8 bits, with the exact size of their rounding errors."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clearhead.runtime.vectors import Vectors

_LEVELS = 127


def quantize_rows(vectors: Vectors) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the codes of each row, and its scale with the norm of its error, rounded up.

    Equation: x = s c + r with s = max_j |x_j| / 127, c = round(x / s), e = ‖r‖

    Args:
        vectors: float32 (n, d).

    Returns:
        Codes (n, d) of [-127, 127], and s and e (n, 2).

    >>> codes, bounds = quantize_rows(np.float32([[1.0, -0.5]]))
    >>> codes.tolist(), bounds.shape
    ([[127, -64]], (1, 2))
    """
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    scales = (largest / np.float32(_LEVELS)).astype(np.float32)
    scales[largest < 1e-30] = 0.0  # a scale below the normal numbers would not have the precision of float32
    exact, divisors = vectors.astype(np.float64), scales.astype(np.float64)
    codes = np.rint(exact / np.where(divisors, divisors, 1.0)[:, None]) * (divisors > 0)[:, None]
    codes = np.clip(codes, -_LEVELS, _LEVELS)
    errors = np.linalg.norm(exact - codes * divisors[:, None], axis=1)
    # with room for the rounding of the float64 values
    bounds = np.stack([scales, np.nextafter((errors * (1.0 + 1e-12)).astype(np.float32), np.float32(np.inf))], axis=1)
    return codes.astype(np.int8), bounds


def next_float32(value: float) -> float:
    """Return a float32 value that is not smaller.

    >>> next_float32(0.1) > 0.1
    True
    """
    return float(np.nextafter(np.float32(value), np.float32(np.inf)))


@dataclass(frozen=True)
class QuantizedQuery:
    """A query in up to 16 bits.

    Args:
        codes: int16 (d).
        scale: t.
        norm: ‖q‖.
        error: ‖q − t k‖.
    """

    codes: NDArray[np.int16]
    scale: float
    norm: float
    error: float


def quantize_query(query: Vectors) -> QuantizedQuery:
    """Return a query with codes so large that the sum of their products with 8-bit codes fits 32 bits.

    Equation: q ≈ t k with t = max_j |q_j| / L, k = round(q / t), L = min(32767, (2³¹ − 1) / 127 d)

    Args:
        query: float32 (d).
    """
    levels = min(32767, (2**31 - 1) // (_LEVELS * max(len(query), 1)))
    exact = query.astype(np.float64)
    scale = float(np.float32(np.abs(exact).max(initial=0.0) / levels))
    if scale < 1e-30:
        scale = 0.0
    codes = np.clip(np.rint(exact / (scale or 1.0)), -levels, levels) * (scale > 0)
    error = float(np.linalg.norm(exact - codes * scale))
    return QuantizedQuery(codes.astype(np.int16), scale, float(np.linalg.norm(exact)), error)
