"""Write vectors to .npy, .jsonl or .parquet files, window by window.

A part file next to the output receives the vectors. It can be truncated to the end of any window and continued, so an
interrupted run can resume. The output itself is written atomically from the part file.
"""

import contextlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from clearhead.io.atomic import HashedFile, atomic_file, check_writable, error_path, has_content
from clearhead.runtime.vectors import Vectors


class Format(Protocol):
    """Writer of one file format."""

    def append(self, part: HashedFile, texts: Sequence[str], vectors: Vectors) -> None:
        """Append a window to the part file."""

    def finish(self, part: IO[bytes], file: IO[bytes], rows: int, width: int) -> None:
        """Write the output from the part file, in chunks."""


def check_output(path: Path) -> None:
    """Check that vectors can be written to a path, before anything is computed.

    Raises:
        ValueError: an unknown file extension, a missing or read-only folder, or a missing extra.
    """
    if path.suffix not in FORMATS:
        raise ValueError(
            f"{path}: the file extension selects the format, one of {', '.join(FORMATS)}; got {path.suffix!r}"
        )
    check_writable(path)
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError('Parquet needs pyarrow: pip install "clearhead[parquet]"')


def json_lines(texts: Sequence[str], vectors: Vectors) -> Iterator[str]:
    """Yield one JSON object per text, {"text": ..., "embedding": [...]}, with the shortest exact float32 digits."""
    for text, vector in zip(texts, vectors, strict=True):
        yield f'{{"text": {json.dumps(text, ensure_ascii=False)}, "embedding": [{", ".join(vector.astype(str))}]}}\n'


class PartFile:
    """The hidden file that receives a run's vectors until the output is complete.

    Args:
        path: the output; its extension selects the format.
        width: dimension of a vector.

    The caller must hold the `writer_lock` of the output.
    """

    def __init__(self, path: Path, width: int) -> None:
        self.path, self.width = path, width
        self.part = path.with_name(f".{path.name}.part")
        self._format = FORMATS[path.suffix]
        self._file: HashedFile | None = None

    def holds(self, size: int, sha256: str) -> bool:
        """Return whether the first `size` bytes on disk have this hash."""
        return has_content(self.part, size, sha256)

    def open(self, size: int) -> None:
        """Open the part file to append at `size`, the end of a window; bytes after it are discarded."""
        self._file = HashedFile(self.part, size)

    def append(self, texts: Sequence[str], vectors: Vectors) -> int:
        """Append a window and return the size of the part file once it is synced to disk.

        Raises:
            OSError: the disk is full; it names the output.
        """
        assert self._file is not None
        with error_path(self.path):
            self._format.append(self._file, texts, vectors)
            return self._file.sync()

    @property
    def sha256(self) -> str:
        """The hash of all that has been appended."""
        assert self._file is not None
        return self._file.sha256

    def close(self) -> None:
        """Close the part file and keep it."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # the next start discards incomplete data of a full disk
                self._file.close()

    def finish(self, rows: int) -> None:
        """Write the output atomically; the part file stays."""
        self.close()
        with self.part.open("rb") as part, atomic_file(self.path) as file:
            self._format.finish(part, file, rows, self.width)

    def remove(self) -> None:
        """Remove the part file."""
        self.close()
        self.part.unlink(missing_ok=True)


class _Npy:
    def append(self, part: HashedFile, texts: Sequence[str], vectors: Vectors) -> None:
        part.write(np.ascontiguousarray(vectors).tobytes())

    def finish(self, part: IO[bytes], file: IO[bytes], rows: int, width: int) -> None:
        header: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        _copy(part, file)


class _Jsonl:
    def append(self, part: HashedFile, texts: Sequence[str], vectors: Vectors) -> None:
        for line in json_lines(texts, vectors):
            part.write(line.encode("utf-8"))

    def finish(self, part: IO[bytes], file: IO[bytes], rows: int, width: int) -> None:
        _copy(part, file)


class _Parquet:
    """A Parquet file ends with its index and cannot be continued, so the part file is a sequence of Arrow streams."""

    def append(self, part: HashedFile, texts: Sequence[str], vectors: Vectors) -> None:
        import pyarrow

        batch = self._batch(texts, vectors)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        part.write(sink.getvalue().to_pybytes())

    def finish(self, part: IO[bytes], file: IO[bytes], rows: int, width: int) -> None:
        import pyarrow
        import pyarrow.parquet

        schema = self._batch([], np.empty((0, width), np.float32)).schema
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            left = rows
            while left:
                with pyarrow.ipc.open_stream(part) as stream:
                    for batch in stream:
                        writer.write_batch(batch)
                        left -= batch.num_rows

    @staticmethod
    def _batch(texts: Sequence[str], vectors: Vectors) -> Any:
        import pyarrow

        flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
        columns = [
            pyarrow.array(texts, pyarrow.string()),
            pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        ]
        return pyarrow.record_batch(columns, names=["text", "embedding"])


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    while piece := source.read(1 << 22):
        target.write(piece)


FORMATS: dict[str, Format] = {".npy": _Npy(), ".jsonl": _Jsonl(), ".parquet": _Parquet()}
"""Writers by file extension."""
