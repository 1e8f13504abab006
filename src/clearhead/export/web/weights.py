"""The weights of all graphs in one small file: float16 where that is exact, else float32; or 8 bits."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import ModelProto

FILE = "weights.bin"
MAX_MEGABYTES = 100
"""Largest file of weights: a browser keeps them in memory as float32, and a visitor has to download them."""

_LOCATION = "weights"
_MIN_ELEMENTS = 64
"""Smaller tensors stay in the graphs."""
_LARGEST_CODE = 127


@dataclass(frozen=True)
class StoredTensor:
    """How a tensor is stored.

    Args:
        dtype: "float32", "float16", or "int8" with a float32 scale for each row before the codes.
        rows: number of rows: the first dimension.
        columns: number of elements of a row.
    """

    dtype: str
    rows: int
    columns: int


class WeightsFile:
    """Collects the weights of graphs, which then refer to them. Equal tensors are stored once.

    Args:
        int8: quantize matrices to 8 bits with one scale for each row; the graphs compute in float32.
    """

    def __init__(self, *, int8: bool) -> None:
        self.int8 = int8
        self.tensors: list[StoredTensor] = []
        self._stored: list[bytes] = []
        self._expanded: list[bytes] = []
        self._offsets: dict[str, int] = {}
        self._size = 0

    def take(self, graph: "ModelProto") -> None:
        """Move the weights out of a graph, which then reads them from the expanded file."""
        import onnx
        from onnx.external_data_helper import set_external_data

        for tensor in graph.graph.initializer:
            if tensor.data_type != onnx.TensorProto.FLOAT or np.prod(tensor.dims, dtype=np.int64) < _MIN_ELEMENTS:
                continue
            array = onnx.numpy_helper.to_array(tensor)
            offset = self._add(np.ascontiguousarray(array, dtype="<f4"))
            tensor.raw_data = b""
            set_external_data(tensor, _LOCATION, offset, array.nbytes)
            tensor.ClearField("raw_data")

    def stored(self) -> bytes:
        """Return the contents of the file, in the order of `tensors`."""
        return b"".join(self._stored)

    def expanded(self) -> bytes:
        """Return all tensors in float32, as the browser expands them and the graphs read them."""
        return b"".join(self._expanded)

    def write_expanded(self, folder: Path) -> None:
        """Write the expanded weights next to graphs in a folder, for ONNX Runtime in Python."""
        (folder / _LOCATION).write_bytes(self.expanded())

    def manifest(self) -> list[dict[str, Any]]:
        """Return the tensors as JSON."""
        return [asdict(tensor) for tensor in self.tensors]

    def _add(self, array: NDArray[np.float32]) -> int:
        """Store a tensor, if no equal one is stored, and return its offset in the expanded weights."""
        key = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()
        if key not in self._offsets:
            dtype, stored, expanded = _store(array, int8=self.int8 and array.ndim == 2)
            rows = array.shape[0] if array.ndim else 1
            self.tensors.append(StoredTensor(dtype, rows, array.size // rows))
            self._stored.append(stored + bytes(-len(stored) % 4))  # a Float32Array starts at a multiple of 4
            self._expanded.append(expanded)
            self._offsets[key], self._size = self._size, self._size + len(expanded)
        return self._offsets[key]


def _store(array: NDArray[np.float32], *, int8: bool) -> tuple[str, bytes, bytes]:
    """Return the stored dtype and bytes of a tensor, and its bytes in float32 as they are read back."""
    if int8:
        scales = np.maximum(np.abs(array).max(axis=1, keepdims=True), 1e-30) / np.float32(_LARGEST_CODE)
        codes = np.rint(array / scales).astype(np.int8)
        return "int8", scales.tobytes() + codes.tobytes(), (codes * scales).astype("<f4").tobytes()
    with np.errstate(over="ignore"):
        half = array.astype("<f2")
    if np.array_equal(half.astype("<f4"), array):
        return "float16", half.tobytes(), array.tobytes()
    return "float32", array.tobytes(), array.tobytes()
