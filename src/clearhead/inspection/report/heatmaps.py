"""Tensors as the page shows them: as bytes, in blocks where there are many numbers, deflated."""

import base64
import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from clearhead.inspection.attention.capture import AttentionLayer

_ROWS, _COLUMNS = 48, 96
"""Cells of a heat map at most; those of several heads are together no wider."""
_MAP, _LEAST = 256, 32
"""Rows and columns of an attention map at most; and where even so all maps are too large for the page."""
_NOTHING = -128
"""The byte of a cell in which no number is finite."""

Json = dict[str, Any]


class Blobs:
    """Bytes, deflated and as text, that the page unpacks when it first needs them; what is alike stands once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Where a text stands, which `deflated` made."""
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]


def deflated(cells: np.ndarray) -> str:
    """The bytes of an array for a JSON file."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(cells).tobytes())).decode("ascii")


@dataclass(frozen=True)
class Heat:
    """A step's numbers as bytes: each is its byte, from −127 to 127, times the largest, divided by 127.

    Args:
        heads: how many matrices; 1 for what has no heads.
        height, width: of each.
        rows, columns: cells of each. Fewer than its numbers: a cell is the mean of those of a block that are finite.
        largest: of the cells, without its sign.
        masked: how many of all numbers are −∞. A cell with nothing finite in it has the byte −128.
        data: where the bytes stand, head after head.
    """

    heads: int
    height: int
    width: int
    rows: int
    columns: int
    largest: float
    masked: int
    data: int


def heatmap(result: Tensor, most: int, blobs: Blobs) -> Heat:
    """The heat map of the first text of a batch.

    Args:
        result: (B, H, L, K), (B, L, D) or (B, D).
        most: cells at most, as near as the shape allows.
        blobs: where its bytes go.
    """
    numbers = (result[0] if result.ndim > 2 else result).float().numpy()
    numbers = numbers.reshape(-1, *numbers.shape[-2:])
    heads, height, width = numbers.shape
    rows, columns = _cells(heads, height, width, most)
    means = [_means(head, rows, columns) for head in numbers]
    cells = np.stack([cells for cells, _ in means])
    finite = np.isfinite(cells)
    largest = float(np.abs(cells, where=finite, out=np.zeros_like(cells)).max()) or 1.0
    scaled = np.where(finite, np.round(cells * (127 / largest)), _NOTHING).astype(np.int8)
    masked = sum(count for _, count in means)
    return Heat(heads, height, width, rows, columns, largest, masked, blobs.add(deflated(scaled)))


def _cells(heads: int, height: int, width: int, most: int) -> tuple[int, int]:
    """Rows and columns of a head's cells: all rows if there is room, and few columns; else as many of each."""
    most = max(1, min(most, _ROWS * _COLUMNS) // heads)
    rows = min(height, _ROWS)
    columns = min(width, _COLUMNS, most // rows)
    if columns < min(rows, width):
        columns = min(width, math.isqrt(most))
        rows = min(rows, most // columns)
    return rows, columns


def _means(numbers: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, int]:
    """The means of what is finite in each block, NaN where nothing is; and how many of the numbers are −∞."""
    sums, counts, masked = [], [], 0
    for band in _bands(numbers, rows):  # what is made of one fits into a cache: a long text's scores are gigabytes
        finite = np.isfinite(band)
        if finite.all():
            sums.append(band.sum(axis=0))
            counts.append(np.full(band.shape[1], len(band), np.float32))
        else:
            sums.append(np.where(finite, band, np.float32(0)).sum(axis=0))
            counts.append(finite.sum(axis=0, dtype=np.float32))
            masked += int(np.isneginf(band).sum())
    with np.errstate(invalid="ignore"):
        means: np.ndarray = _joined(np.add, sums, columns) / _joined(np.add, counts, columns)
    return means, masked


def _bands(numbers: np.ndarray, rows: int) -> list[np.ndarray]:
    """The rows of each row of cells: those of cell i of k are from ⌊i · n / k⌋ up to the next one's first."""
    starts = np.arange(rows + 1) * len(numbers) // rows
    return [numbers[start:stop] for start, stop in itertools.pairwise(starts)]


def _joined(join: np.ufunc, bands: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Bands of which each is one row already, their columns joined to cells in the same way."""
    numbers = np.stack(bands)
    width = numbers.shape[1]
    found: np.ndarray = join.reduceat(numbers, np.arange(columns) * width // columns, axis=1)
    return found


@dataclass
class Map:
    """One head's weights as bytes, of a block the largest: a byte times the largest weight, divided by 255, is one."""

    head: int
    cells: np.ndarray
    largest: float
    kept: bool
    """Whole, also where the page would be too large."""


def maps(place: AttentionLayer, weights_HLM: Tensor, whole: frozenset[tuple[str, int, int]]) -> list[Map]:
    """The maps of a layer's heads, with at most 256 x 256 cells unless wanted whole."""
    found = []
    for number, weights in enumerate(weights_HLM):
        kept = (place.part, place.layer, number) in whole
        cells = weights.numpy() if kept else _at_most(weights.numpy(), _MAP)
        largest = float(cells.max()) or 1.0
        found.append(Map(number, np.round(cells * (255 / largest)).astype(np.uint8), largest, kept))
    return found


def _at_most(cells: np.ndarray, size: int) -> np.ndarray:
    rows, columns = (min(length, size) for length in cells.shape)
    return _joined(np.maximum, [band.max(axis=0) for band in _bands(cells, rows)], columns)


def pack(layers: Sequence[tuple[Json, list[Map]]], room: int, blobs: Blobs) -> list[Json]:
    """All layers' maps for the page, those that need not stay whole with half as many rows and columns until all fit.

    Args:
        layers: what is said of each layer, and its maps.
        room: letters that they may take.
        blobs: where their bytes go.

    Raises:
        ValueError: those that stay whole leave no room for the others at their smallest.
    """
    every = [one for _, heads in layers for one in heads]
    kept = {id(one): deflated(one.cells) for one in every if one.kept}
    size = _MAP
    while True:
        texts = kept | {id(one): deflated(one.cells) for one in every if not one.kept}
        letters = sum(map(len, texts.values()))
        if letters <= room:
            break
        if size == _LEAST:
            raise ValueError(
                f"the attention maps take {letters / 1e6:.1f} MB of the page, which has {room / 1e6:.1f} for them: "
                f"keep fewer maps whole than {len(kept)}"
            )
        size //= 2  # blocks of powers of two hold whole blocks of the size before: the largest stays the largest
        for one in every:
            one.cells = one.cells if one.kept else _at_most(one.cells, size)
    return [
        about
        | {
            "heads": [
                {
                    "head": one.head,
                    "rows": one.cells.shape[0],
                    "columns": one.cells.shape[1],
                    "largest": one.largest,
                    "data": blobs.add(texts[id(one)]),
                }
                for one in heads
            ]
        }
        for about, heads in layers
    ]
