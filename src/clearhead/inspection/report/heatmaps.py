"""Compress tensors for the page: bytes, pooled in blocks, deflated."""

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from clearhead.inspection.attention.pooled import bands, pool_columns, pool_largest
from clearhead.inspection.attention.weights import AttentionLayer

_MAX_ROWS, _MAX_COLUMNS = 48, 96
"""Largest size of a heat map, and of all heads of a step together in columns."""
_MAX_MAP, _MIN_MAP = 256, 32
"""Largest size of an attention map, and the size below which it is not pooled further."""
_NOT_FINITE = -128
"""Byte of a cell without finite elements."""

Json = dict[str, Any]


class Blobs:
    """Deflated bytes as text, which the page unpacks on first use; equal texts are stored once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._indices: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Store a text of `deflate`, and return its index."""
        if text not in self._indices:
            self._indices[text] = len(self.texts)
            self.texts.append(text)
        return self._indices[text]


def deflate(cells: np.ndarray) -> str:
    """Return the bytes of an array as deflated base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(cells).tobytes())).decode("ascii")


@dataclass(frozen=True)
class Heatmap:
    """A result as bytes from −127 to 127: an element is its byte times the largest value, divided by 127.

    Args:
        heads: number of matrices; 1 for results without heads.
        height, width: size of each matrix.
        rows, columns: cells of each matrix. A cell of a pooled map is the mean of the finite elements of its block.
        largest: largest absolute value of a cell.
        masked: number of elements that are −∞. A cell without finite elements has the byte −128.
        data: index of the bytes in `Blobs`, head by head.
    """

    heads: int
    height: int
    width: int
    rows: int
    columns: int
    largest: float
    masked: int
    data: int


def heatmap(result: Tensor, max_cells: int, blobs: Blobs) -> Heatmap:
    """Return the heat map of the first text of a batch.

    Args:
        result: (B, H, L, K), (B, L, D) or (B, D).
        max_cells: largest number of cells, as far as the shape allows.
        blobs: receives the bytes.
    """
    values = (result[0] if result.ndim > 2 else result).float().numpy()
    values = values.reshape(-1, *values.shape[-2:])
    heads, height, width = values.shape
    rows, columns = _size(heads, height, width, max_cells)
    pooled = [_pool_means(head, rows, columns) for head in values]
    cells = np.stack([cells for cells, _ in pooled])
    finite = np.isfinite(cells)
    largest = float(np.abs(cells, where=finite, out=np.zeros_like(cells)).max()) or 1.0
    scaled = np.where(finite, np.round(cells * (127 / largest)), _NOT_FINITE).astype(np.int8)
    masked = sum(count for _, count in pooled)
    return Heatmap(heads, height, width, rows, columns, largest, masked, blobs.add(deflate(scaled)))


def _size(heads: int, height: int, width: int, max_cells: int) -> tuple[int, int]:
    """Return the rows and columns of a head: all rows and few columns if they fit, else a square."""
    max_cells = max(1, min(max_cells, _MAX_ROWS * _MAX_COLUMNS) // heads)
    rows = min(height, _MAX_ROWS)
    columns = min(width, _MAX_COLUMNS, max_cells // rows)
    if columns < min(rows, width):
        columns = min(width, math.isqrt(max_cells))
        rows = min(rows, max_cells // columns)
    return rows, columns


def _pool_means(values: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, int]:
    """Return the mean of the finite elements of each block, or NaN, and the number of elements that are −∞."""
    sums, counts, masked = [], [], 0
    for band in bands(values, rows):  # a band fits into the cache; the scores of a long text take gigabytes
        finite = np.isfinite(band)
        if finite.all():
            sums.append(band.sum(axis=0))
            counts.append(np.full(band.shape[1], len(band), np.float32))
        else:
            sums.append(np.where(finite, band, np.float32(0)).sum(axis=0))
            counts.append(finite.sum(axis=0, dtype=np.float32))
            masked += int(np.isneginf(band).sum())
    with np.errstate(invalid="ignore"):
        means: np.ndarray = pool_columns(np.add, sums, columns) / pool_columns(np.add, counts, columns)
    return means, masked


@dataclass
class AttentionMap:
    """The weights of one head as bytes from 0 to 255: a weight is its byte times the largest weight, divided by 255.

    Args:
        head: index of the head.
        cells: the bytes; a cell of a pooled map is the largest weight of its block.
        largest: the largest weight.
        full_size: whether the map is never pooled.
    """

    head: int
    cells: np.ndarray
    largest: float
    full_size: bool


def attention_maps(
    layer: AttentionLayer, weights_HLM: Tensor, full_maps: frozenset[tuple[str, int, int]]
) -> list[AttentionMap]:
    """Return the maps of a layer's heads, pooled to 256 x 256 cells except the full maps."""
    result = []
    for head, weights in enumerate(weights_HLM):
        full_size = (layer.part, layer.layer, head) in full_maps
        cells = weights.numpy() if full_size else pool_largest(weights.numpy(), _MAX_MAP)
        largest = float(cells.max()) or 1.0
        result.append(AttentionMap(head, np.round(cells * (255 / largest)).astype(np.uint8), largest, full_size))
    return result


def pack(layers: Sequence[tuple[Json, list[AttentionMap]]], max_characters: int, blobs: Blobs) -> list[Json]:
    """Return the maps of all layers as data of the page, halving the size of pooled maps until all fit.

    Args:
        layers: the description of each layer, and its maps.
        max_characters: largest size of all maps.
        blobs: receives the bytes.

    Raises:
        ValueError: the full maps leave too little space for the others.
    """
    every_map = [attention_map for _, maps in layers for attention_map in maps]
    full = {id(one): deflate(one.cells) for one in every_map if one.full_size}
    size = _MAX_MAP
    while True:
        texts = full | {id(one): deflate(one.cells) for one in every_map if not one.full_size}
        characters = sum(map(len, texts.values()))
        if characters <= max_characters:
            break
        if size == _MIN_MAP:
            raise ValueError(
                f"The attention maps take {characters / 1e6:.1f} MB of the page, and the limit is "
                f"{max_characters / 1e6:.1f} MB. Keep fewer full maps than {len(full)}."
            )
        size //= 2  # a block of the new size contains whole blocks of the old size, so the largest weights remain
        for one in every_map:
            one.cells = one.cells if one.full_size else pool_largest(one.cells, size)
    return [
        layer
        | {
            "heads": [
                {
                    "head": one.head,
                    "rows": one.cells.shape[0],
                    "columns": one.cells.shape[1],
                    "largest": one.largest,
                    "data": blobs.add(texts[id(one)]),
                }
                for one in maps
            ]
        }
        for layer, maps in layers
    ]
