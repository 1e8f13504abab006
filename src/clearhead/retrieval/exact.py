"""Exact search: the rows with the largest dot products, whatever the rounding of the fast scores; its arguments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clearhead.kernels.native import library
from clearhead.retrieval.files import StoredRows, checked_norms
from clearhead.retrieval.manifest import BOUNDS, vectors_file
from clearhead.retrieval.quantization import next_float32, quantize_query
from clearhead.runtime.vectors import AnyVectors, Vectors

_BLOCK_BYTES = 2**25
"""Bytes of the vectors that are scored together, so that their scores and copies stay in the cache."""
_QUERIES = 16
"""Queries that are scored together."""
_RESCORED = 64
"""Rows that are computed again before the first check whether others can be better."""
_SMALLEST = 1e-36
"""Bound of the absolute error of products below the normal numbers of float32."""


@dataclass(frozen=True)
class TopRows:
    """Best rows of each query, best first; equal scores in the order of the rows.

    Args:
        rows: int64 (n, k).
        scores: float64 (n, k), the dot products.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


def search_exact(stored: StoredRows, queries: Vectors, top_k: int) -> TopRows:
    """Return the rows with the largest dot products with each query.

    All rows are scored in float32 or in 8 bits, with a bound of the error. Rows that can be among the
    best within this bound are computed again in float64.

    Equation: top-k of q · x_i over all rows i
    Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", equation 3.5, for float32:
        |fl(q · x) − q · x| ≤ γ_d ‖q‖ ‖x‖ with γ_d = d u / (1 − d u) and u = 2⁻²⁴. In 8 bits, x = s c + r and
        |q · x − q · s c| ≤ ‖q‖ ‖r‖ (Cauchy–Schwarz)

    Args:
        stored: the rows.
        queries: float32 (n, d), with norms of at most `MAX_NORM`: NaN in a score is then damage, and no overflow.
        top_k: the number of rows k; fewer if there are fewer.
    """
    count = min(top_k, stored.manifest.rows)
    rows, scores = np.empty((len(queries), count), np.int64), np.empty((len(queries), count))
    if not count:
        return TopRows(rows, scores)
    if stored.manifest.dtype == "int8":
        for index, query in enumerate(queries):
            rows[index], scores[index] = _search_codes(stored, query, count)
        return check_scores(stored, queries, TopRows(rows, scores))
    for start in range(0, len(queries), _QUERIES):
        block = queries[start : start + _QUERIES]
        for index, candidates in enumerate(_candidates(stored, block, count), start):
            exact = score_rows(stored, queries[index], candidates)
            if len(candidates) < count:  # the scores hold NaN
                raise stored.damaged(vectors_file(stored.manifest.dtype))
            rows[index], scores[index] = best(candidates, exact, count)
    return check_scores(stored, queries, TopRows(rows, scores))


def check_scores(stored: StoredRows, queries: Vectors, top: TopRows) -> TopRows:
    """Return the rows if each score is possible: |q · x| ≤ ‖q‖ ‖x‖ (Cauchy–Schwarz), with a margin for rounding.

    Raises:
        ValueError: a score is not; the file of the vectors is damaged.
    """
    norms = np.linalg.norm(queries.astype(np.float64), axis=1, keepdims=True)
    limits = norms * (stored.manifest.max_norm * 1.01 + _SMALLEST)  # bfloat16 rounds to 0.4 %, subnormals more
    if not (np.abs(top.scores) <= limits).all():
        raise stored.damaged(vectors_file(stored.manifest.dtype))
    return top


def score_rows(stored: StoredRows, query: Vectors, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the dot products of a query (d) with rows, in float64."""
    # row by row in the same order of the columns, so that equal vectors have equal scores
    products = stored.gather(rows).astype(np.float64) * query.astype(np.float64)
    sums: NDArray[np.float64] = products.sum(axis=1)
    return sums


def best(
    rows: NDArray[np.int64], scores: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows with the largest scores, largest first; equal scores in the order of the rows."""
    order = np.lexsort((rows, -scores))[:count]
    return rows[order], scores[order]


def _search_codes(stored: StoredRows, query: Vectors, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the best rows of a query (d), with bounds from vectors in 8 bits."""
    upper, slack, lower = _bounds(stored, query)
    norm = next_float32(quantize_query(query).norm)  # that of the bounds, which is above 0 for a query of zeros, too
    # at least `count` blocks have a row with this score or a higher one
    limit = np.partition(lower, len(lower) - count)[len(lower) - count] if len(lower) >= count else -np.inf
    rows = np.flatnonzero(upper >= limit)
    if len(rows) < count:  # the bounds hold NaN
        raise stored.damaged(BOUNDS)
    highest = upper[rows].astype(np.float64)
    lowest = highest - 2.0 * (norm * (1.0 + 1e-6) * stored.bounds[rows, 1].astype(np.float64) + slack)
    kept = highest >= np.partition(lowest, len(lowest) - count)[len(lowest) - count]
    rows, highest = rows[kept], highest[kept]
    if len(rows) < count:
        raise stored.damaged(BOUNDS)
    order = np.argsort(-highest)
    rows, highest = rows[order], highest[order]
    found, scores, start, end = rows[:0], highest[:0], 0, max(_RESCORED, 2 * count)
    while start < len(rows) and (len(found) < count or highest[start] >= scores[-1]):
        batch = rows[start:end]
        exact = score_rows(stored, query, batch)
        found, scores = best(np.concatenate([found, batch]), np.concatenate([scores, exact]), count)
        start, end = end, 2 * end
    return found, scores


def _bounds(stored: StoredRows, query: Vectors) -> tuple[NDArray[np.float32], float, NDArray[np.float32]]:
    """Return upper bounds of all rows, the part of their error that all rows share, and lower bounds of blocks."""
    quantized, width = quantize_query(query), stored.manifest.width
    # ‖s c‖ ≤ ‖x‖ + ‖r‖, and ‖r‖ ≤ √d max_j |x_j| / 254
    norm = stored.manifest.max_norm * (1.0 + 0.5 * width**0.5 / 127)
    product = (quantized.norm + quantized.error) * norm
    isa = library.isa_with("search_bounds")
    rounding = 2.0**-20 if isa is not None else 2.0**-20 + float32_error(width)
    slack = next_float32(quantized.error * norm + rounding * product + _SMALLEST)
    query_norm, upper = next_float32(quantized.norm), stored.row_buffer()
    if isa is not None:
        factors = (quantized.scale, query_norm, slack)
        lower = library.search_bounds(stored.codes, stored.bounds, quantized.codes, factors, upper, isa)
        return upper, slack, lower
    scaled = (quantized.codes * quantized.scale).astype(np.float32)
    step = max(1, _BLOCK_BYTES // max(4 * width, 1))
    for start in range(0, len(upper), step):
        scores = stored.codes[start : start + step].astype(np.float32) @ scaled
        scale, error = stored.bounds[start : start + step].T
        upper[start : start + step] = scores * scale + (query_norm * error + slack)
    return upper, slack, upper - (np.float32(2.0) * (np.float32(query_norm) * stored.bounds[:, 1] + np.float32(slack)))


def _candidates(stored: StoredRows, queries: Vectors, count: int) -> Iterator[NDArray[np.int64]]:
    """Yield, for each query, the rows that can be among its best."""
    scores = np.empty((len(queries), stored.manifest.rows), np.float32)
    step = max(1, _BLOCK_BYTES // max(4 * stored.manifest.width, 1))
    for start in range(0, stored.manifest.rows, step):
        end = min(start + step, stored.manifest.rows)
        np.matmul(queries, stored.read(start, end).T, out=scores[:, start:end])
    errors = float32_error(stored.manifest.width) * np.linalg.norm(queries.astype(np.float64), axis=1)
    for row, error in zip(scores, errors * stored.manifest.max_norm + _SMALLEST, strict=True):
        yield above(row, count, 2.0 * float(error))


def float32_error(width: int) -> float:
    """Return the largest relative error of a dot product of this many columns in float32, in any order of the sum."""
    unit = 2.0**-24
    return (width + 2) * unit / (1.0 - (width + 2) * unit)


def above(scores: NDArray[np.float32], count: int, margin: float) -> NDArray[np.int64]:
    """Return the indices of the scores that are at most `margin` below the one of rank `count`, in ascending order."""
    if count < 1:
        return np.empty(0, np.int64)
    tenth = float(np.partition(scores, len(scores) - count)[len(scores) - count])
    return np.flatnonzero(scores >= np.float32(np.nextafter(np.float32(tenth - margin), np.float32(-np.inf))))


QueryVectors = AnyVectors | Sequence[Sequence[float]]
"""Vectors (n, d) of any real type, in an array, a tensor, or a list of them or of lists of numbers."""


def check_count(name: str, value: object) -> int:
    """Return a number of documents as an integer of Python.

    Args:
        name: the argument, for messages.
        value: its value.

    Raises:
        ValueError: the value is not a whole number of at least 1.

    >>> check_count("top_k", np.int64(3))
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r:.80}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}")
    return int(value)


def query_vectors(queries: QueryVectors, width: int) -> Vectors:
    """Return vectors of queries as a float32 array (n, d) whose products with documents fit float32.

    Args:
        queries: the vectors.
        width: number of columns d.

    Raises:
        ValueError: vectors of another shape or type, with NaN or infinity, or too large.

    >>> query_vectors([[3.0, 4.0]], 2)
    array([[3., 4.]], dtype=float32)
    """
    shape = f"expected vectors of shape (n, {width})"
    try:
        array = _as_array(queries)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"{shape}, got rows of different lengths or types") from None
    if array.dtype.kind not in "fiu":  # a cast would drop the imaginary part of complex numbers
        raise ValueError(f"expected vectors of real numbers, got values of type {array.dtype}")
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(f"{shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("a vector holds NaN or infinity; expected finite values")
    with np.errstate(over="ignore"):  # the message below is better than a warning
        vectors = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(vectors).all():
        raise ValueError(
            f"a vector holds {array[~np.isfinite(vectors)][0]:.3g}, which is too large for float32. Normalize vectors"
        )
    checked_norms(vectors)
    return vectors


def _as_array(vectors: object) -> NDArray[Any]:
    if isinstance(vectors, list | tuple):
        return np.asarray([_without_torch(vector) for vector in vectors])
    return np.asarray(_without_torch(vectors))


def _without_torch(vectors: object) -> object:
    if not isinstance(vectors, Tensor):
        return vectors
    vectors = vectors.detach().cpu()
    return (vectors.double() if vectors.is_floating_point() else vectors).numpy()  # NumPy has no bfloat16
