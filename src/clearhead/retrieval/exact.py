"""Exact search: the rows with the largest dot products, whatever the rounding of the fast product."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clearhead.retrieval.files import StoredRows
from clearhead.runtime.vectors import Vectors

_BLOCK_BYTES = 2**25
"""Bytes of the vectors that are scored together, so that their scores and copies stay in the cache."""
_QUERIES = 16
"""Queries that are scored together."""


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

    The products of all rows in float32 come with a bound of their error. Rows that can be among the best within this
    bound are computed again in float64.

    Equation: top-k of q · x_i over all rows i
    Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", equation 3.5, for the bound
        |fl(q · x) − q · x| ≤ γ_d ‖q‖ ‖x‖ with γ_d = d u / (1 − d u) and u = 2⁻²⁴

    Args:
        stored: the rows.
        queries: float32 (n, d).
        top_k: the number of rows k; fewer if there are fewer.
    """
    count = min(top_k, stored.manifest.rows)
    rows, scores = np.empty((len(queries), count), np.int64), np.empty((len(queries), count))
    for start in range(0, len(queries), _QUERIES):
        block = queries[start : start + _QUERIES]
        for index, candidates in enumerate(_candidates(stored, block, count), start):
            rows[index], scores[index] = rescore(stored, queries[index], candidates, count)
    return TopRows(rows, scores)


def rescore(
    stored: StoredRows, query: Vectors, candidates: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the best candidates and their dot products in float64.

    Args:
        stored: the rows.
        query: float32 (d).
        candidates: rows in ascending order.
        count: number of rows to return.
    """
    # row by row in the same order of the columns, so that equal vectors have equal scores
    scores = (stored.gather(candidates).astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    best = np.argsort(-scores, kind="stable")[:count]
    return candidates[best], scores[best]


def _candidates(stored: StoredRows, queries: Vectors, count: int) -> Iterator[NDArray[np.int64]]:
    """Yield, for each query, the rows that can be among its best."""
    scores = np.empty((len(queries), stored.manifest.rows), np.float32)
    step = max(1, _BLOCK_BYTES // max(4 * stored.manifest.width, 1))
    for start in range(0, stored.manifest.rows, step):
        end = min(start + step, stored.manifest.rows)
        np.matmul(queries, stored.read(start, end).T, out=scores[:, start:end])
    errors = float32_error(stored.manifest.width) * np.linalg.norm(queries.astype(np.float64), axis=1)
    for row, error in zip(scores, errors * stored.manifest.max_norm, strict=True):
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
