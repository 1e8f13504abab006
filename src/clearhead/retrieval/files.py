"""Read and append the files of an index: vectors, texts and columns."""

import dataclasses
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.io.hashed import HashedFile
from clearhead.io.json import finite_or_none
from clearhead.retrieval.manifest import (
    BOUNDS,
    CODES,
    DOCUMENTS,
    ENDS,
    FileState,
    IndexFolderError,
    Manifest,
    vectors_file,
)
from clearhead.retrieval.quantization import quantize_rows
from clearhead.runtime.vectors import Vectors

MAX_NORM = 1e18
"""The largest norm of a vector of a document or query, so that dot products in float32 are finite."""


class IndexWriter:
    """Append rows to the files of an index. Rows count only once a manifest that includes them is written.

    Args:
        folder: the folder of the files.
        manifest: the rows that exist. Bytes after them are discarded.

    Raises:
        IndexFolderError: a file does not have the contents that the manifest describes.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest, self._files = manifest, dict[str, HashedFile]()
        for name in (DOCUMENTS, *manifest.row_bytes):
            state = manifest.files.get(name, FileState())
            self._files[name] = HashedFile(folder / name, state.size)
            if state.size and self._files[name].sha256 != state.sha256:
                self.close()
                raise IndexFolderError(f"{folder / name} is damaged: its hash is not that of the index. Build it again")
        self._position = manifest.files.get(DOCUMENTS, FileState()).size

    def append(self, texts: Sequence[str], columns: Sequence[Mapping[str, Any]], vectors: Vectors) -> Manifest:
        """Append documents and return the manifest that includes them, once they are synced to disk.

        Args:
            texts: the texts.
            columns: values of the other columns of each text, by name.
            vectors: float32 (n, d).
        """
        norms = checked_norms(vectors)
        ends = np.empty(len(texts), "<i8")
        for index, (text, values) in enumerate(zip(texts, columns, strict=True)):
            fields = {"text": text} | {name: finite_or_none(value) for name, value in values.items()}
            line = json.dumps(fields, ensure_ascii=False, allow_nan=False, default=str).encode() + b"\n"
            self._files[DOCUMENTS].write(line)
            self._position += len(line)
            ends[index] = self._position
        self._files[ENDS].write(ends.tobytes())
        for name, data in encode_vectors(vectors, self.manifest).items():
            self._files[name].write(data)
        self.manifest = dataclasses.replace(
            self.manifest,
            rows=self.manifest.rows + len(texts),
            max_norm=max([self.manifest.max_norm, *norms.tolist()]),
            files={name: FileState(file.sync(), file.sha256) for name, file in self._files.items()},
        )
        return self.manifest

    def close(self) -> None:
        """Close the files and keep them."""
        for file in self._files.values():
            file.close()


def checked_norms(vectors: Vectors) -> NDArray[np.float64]:
    """Return the norms of vectors.

    Raises:
        ValueError: a norm is so large that scores in float32 could overflow.
    """
    norms: NDArray[np.float64] = np.linalg.norm(vectors.astype(np.float64), axis=1)
    if len(norms) and norms.max() > MAX_NORM:
        raise ValueError(
            f"a vector has the norm {norms.max():.3g}; expected at most {MAX_NORM:g}, so that "
            "products fit float32. Normalize vectors"
        )
    return norms


def encode_vectors(vectors: Vectors, manifest: Manifest) -> dict[str, bytes]:
    """Return the bytes of vectors in each file of an index."""
    if manifest.dtype == "bfloat16":
        return {vectors_file("bfloat16"): to_bfloat16(vectors).tobytes()}
    data = {vectors_file("float32"): np.ascontiguousarray(vectors, "<f4").tobytes()}
    if manifest.dtype == "int8":
        codes, bounds = quantize_rows(vectors)
        data |= {CODES: codes.tobytes(), BOUNDS: bounds.astype("<f4").tobytes()}
    return data


def to_bfloat16(vectors: Vectors) -> NDArray[np.uint16]:
    """Return the upper 16 bits of finite float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(vectors, "<f4").view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(codes: NDArray[np.uint16]) -> Vectors:
    """Return bfloat16 values as float32.

    >>> from_bfloat16(to_bfloat16(np.float32([1.0, 0.1])))
    array([1.        , 0.10009766], dtype=float32)
    """
    return (codes.astype(np.uint32) << 16).view(np.float32)


class RandomAccessFile:
    """Read parts of a file, also from several threads.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._lock = threading.Lock()
        weakref.finalize(self, self._file.close)

    def read(self, size: int, position: int) -> bytes:
        """Return the bytes at a position."""
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), size, position)
        with self._lock:  # Windows
            self._file.seek(position)
            return self._file.read(size)


class StoredRows:
    """The rows of an index, read from disk.

    Args:
        folder: the index.
        manifest: its description.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest, self._folder = manifest, folder
        name = vectors_file(manifest.dtype)
        self._row_bytes = manifest.row_bytes[name]
        self.stored = map_rows(folder / name, manifest.rows, manifest.width, "<u2" if is_half(manifest) else "<f4")
        self._ends = map_rows(folder / ENDS, manifest.rows, 1, "<i8")
        if manifest.dtype == "int8":
            self.codes = map_rows(folder / CODES, manifest.rows, manifest.width, "i1")
            self.bounds = map_rows(folder / BOUNDS, manifest.rows, 2, "<f4")
        self._buffers = threading.local()
        self.graph: tuple[tuple[int, ...], Any] | None = None  # set by `approximate.open_graph`
        self._vectors = RandomAccessFile(folder / name)
        self._documents = RandomAccessFile(folder / DOCUMENTS)

    def read(self, start: int, end: int) -> Vectors:
        """Return the vectors of consecutive rows in float32, as a view of the mapped file if it has this dtype."""
        rows = self.stored[start:end]
        return from_bfloat16(rows) if is_half(self.manifest) else rows

    def row_buffer(self) -> NDArray[np.float32]:
        """Return a float32 value per row, undefined at first and reused by the next call in the same thread.

        New memory for each query would cost a page fault for every thousand rows: a tenth of a search.
        """
        if not hasattr(self._buffers, "rows"):
            self._buffers.rows = np.empty(self.manifest.rows, np.float32)
        buffer: NDArray[np.float32] = self._buffers.rows
        return buffer

    def gather(self, rows: NDArray[np.int64]) -> Vectors:
        """Return the vectors of rows, in float32. They are read from the file: mapped pages would count as memory."""
        size = self._row_bytes
        data = b"".join(self._vectors.read(size, row * size) for row in rows.tolist())
        if is_half(self.manifest):
            return from_bfloat16(np.frombuffer(data, "<u2").reshape(len(rows), self.manifest.width))
        return np.frombuffer(data, "<f4").reshape(len(rows), self.manifest.width)

    def document(self, row: int) -> dict[str, Any]:
        """Return the text and the columns of a row."""
        start, end = int(self._ends[row - 1, 0]) if row else 0, int(self._ends[row, 0])
        if not 0 <= start < end <= self.manifest.files[DOCUMENTS].size:
            raise self.damaged(ENDS)
        try:
            document: dict[str, Any] = json.loads(self._documents.read(end - start, start))
        except (ValueError, RecursionError):
            raise self.damaged(DOCUMENTS) from None
        if not isinstance(document, dict) or not isinstance(document.get("text"), str):
            raise self.damaged(DOCUMENTS)
        if not document.keys() >= set(self.manifest.columns):
            raise self.damaged(DOCUMENTS)
        return document

    def damaged(self, name: str) -> IndexFolderError:
        """Return the error for a file of the index whose contents cannot be right."""
        return IndexFolderError(f"{self._folder / name} is damaged. Build the index again, or copy it again")


def is_half(manifest: Manifest) -> bool:
    """Return whether an index has its vectors in bfloat16 only."""
    return manifest.dtype == "bfloat16"


def map_rows(path: Path, rows: int, width: int, dtype: str) -> NDArray[Any]:
    """Return the rows of a file as an array (rows, width) that is mapped into memory, read-only."""
    if not rows or not width:
        return np.empty((rows, width), dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, "r", shape=(rows, width))
