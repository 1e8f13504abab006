"""Pool matrices in blocks of rows and columns."""

import itertools
from collections.abc import Sequence

import numpy as np


def bands(values: np.ndarray, rows: int) -> list[np.ndarray]:
    """Split n rows into k bands; band i starts at row ⌊i · n / k⌋."""
    starts = np.arange(rows + 1) * len(values) // rows
    return [values[start:stop] for start, stop in itertools.pairwise(starts)]


def pool_columns(reduce: np.ufunc, rows: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Reduce blocks of the columns of a matrix, given as rows."""
    values = np.stack(rows)
    width = values.shape[1]
    result: np.ndarray = reduce.reduceat(values, np.arange(columns) * width // columns, axis=1)
    return result


def pool_largest(cells: np.ndarray, size: int) -> np.ndarray:
    """Return the largest value of each block, in at most size rows and columns."""
    rows, columns = (min(length, size) for length in cells.shape)
    return pool_columns(np.maximum, [band.max(axis=0) for band in bands(cells, rows)], columns)
