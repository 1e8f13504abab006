"""Store vectors in 8 bits or 1 bit a column."""

import logging
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from clearhead.choices import check_choice
from clearhead.runtime.vectors import Vectors

log = logging.getLogger(__name__)

VectorPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
VECTOR_PRECISIONS: tuple[VectorPrecision, ...] = get_args(VectorPrecision)

_FEW_VECTORS = 100


def quantize_vectors(vectors: Vectors, precision: VectorPrecision, ranges: Vectors | None = None) -> NDArray[Any]:
    """Convert vectors to fewer bits, as `quantize_embeddings` of sentence-transformers does.

    Equation: q = ⌊255 (v − min) / (max − min)⌋, minus 128 for int8; b = [v > 0], 8 columns a byte

    Args:
        vectors: float32 (n, d), or (d,) for a single vector.
        precision: "int8" or "uint8" for a byte a column; "binary" or "ubinary" for a bit a column, in signed or
            unsigned bytes; "float32" for the vectors themselves.
        ranges: minimum and maximum of each column (2, d), for 8 bits; None for those of the vectors. Vectors are
            comparable with others of the same ranges only: compute them once, from many vectors.

    Returns:
        (n, d) in 8 bits, (n, ⌈d/8⌉) in 1 bit.

    Raises:
        ValueError: an unknown precision, ranges of another shape, or 8 bits for a single vector without ranges.

    >>> import numpy as np
    >>> from clearhead import quantize_vectors
    >>> vectors, ranges = np.array([[3, -7.5, 9]], np.float32), np.array([[0, -128, 0], [255, 127, 255]], np.float32)
    >>> quantize_vectors(vectors, "int8", ranges).tolist(), quantize_vectors(vectors, "ubinary").tolist()
    ([[-125, -8, -119]], [[160]])
    """
    check_choice("precision", precision, VECTOR_PRECISIONS)
    if precision == "float32":
        return vectors
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if ranges is None:
        ranges = _ranges(vectors, precision)
    elif ranges.shape != (2, vectors.shape[-1]):
        raise ValueError(f"expected ranges (2, {vectors.shape[-1]}), got an array of shape {ranges.shape}")
    start, end = np.asarray(ranges, np.float32)
    step = (end - start) / np.float32(255)
    step[step == 0] = 1  # a column with one value
    levels: Vectors = np.clip(np.floor((vectors - start) / step), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)


def _ranges(vectors: Vectors, precision: VectorPrecision) -> Vectors:
    """Return the minimum and maximum (2, d) of the columns of vectors."""
    if vectors.ndim == 2 and len(vectors) == 0:
        return np.zeros((2, vectors.shape[1]), np.float32)
    if vectors.ndim == 1 or len(vectors) == 1:
        raise ValueError(
            f"the {precision} range of a column cannot be computed from a single vector. Encode several texts, use "
            "precision='binary', or call clearhead.quantize_vectors with the ranges of other vectors"
        )
    if len(vectors) < _FEW_VECTORS:
        log.warning(
            "the %s ranges of the columns are those of %d vectors. Vectors of other calls have other ranges; "
            "clearhead.quantize_vectors takes ranges",
            precision,
            len(vectors),
        )
    return np.stack([vectors.min(axis=0), vectors.max(axis=0)])
