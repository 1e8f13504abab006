"""Write vectors to .npy, .jsonl or .parquet files, window by window.

A part file next to the output receives the vectors. It can be truncated to the end of any window and continued, so an
interrupted run can resume. The output itself is written atomically from the part file.
"""

import contextlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from clearhead.data.corpus import check_keep
from clearhead.io.atomic import atomic_file, error_path
from clearhead.io.hashed import HashedFile, has_content
from clearhead.io.json import finite_or_none
from clearhead.io.outputs import check_writable
from clearhead.runtime.vectors import Vectors

COLUMNS = ("text", "embedding")
"""Columns of every output but .npy."""

Kept = Sequence[Mapping[str, Any]]
"""Values of other columns of each text, by name."""


class Format(Protocol):
    """Writer of one file format."""

    def append(self, part: HashedFile, texts: Sequence[str], vectors: Vectors, kept: Kept) -> None:
        """Append a window to the part file."""

    def finish(self, part: IO[bytes], file: IO[bytes], rows: int, width: int, keep: Sequence[str]) -> None:
        """Write the output from the part file, in chunks."""


def check_output(path: Path, keep: Sequence[str] = ()) -> None:
    """Check that vectors can be written to a path, before anything is computed.

    Args:
        path: the output.
        keep: names of other columns of the output.

    Raises:
        ValueError: an unknown file extension, a missing or read-only folder, a missing extra, or other columns in a
            format that has none.
    """
    if path.suffix not in FORMATS:
        raise ValueError(
            f"{path}: the file extension selects the format, one of {', '.join(FORMATS)}; got {path.suffix!r}"
        )
    check_keep(keep, COLUMNS)
    if keep and path.suffix == ".npy":
        raise ValueError(f"{path}: a .npy file has no other columns; with --keep, write .jsonl or .parquet")
    check_writable(path)
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError('Parquet needs pyarrow: pip install "clearhead[parquet]"')


def json_lines(texts: Sequence[str], vectors: Vectors, kept: Kept) -> Iterator[str]:
    """Yield one JSON object per text, {"text": ..., "embedding": [...]}, with the shortest exact float32 digits.

    Other columns stand between the text and the vector.
    """
    for text, vector, values in zip(texts, vectors, kept, strict=True):
        fields = {"text": text} | {name: finite_or_none(value) for name, value in values.items()}
        line = json.dumps(fields, ensure_ascii=False, allow_nan=False, default=str)
        yield f'{line[:-1]}, "embedding": [{", ".join(vector.astype(str))}]}}\n'


class PartFile:
    """The hidden file that receives a run's vectors until the output is complete.

    Args:
        path: the output; its extension selects the format.
        width: dimension of a vector.
        keep: names of other columns of the output.

    The caller must hold the `writer_lock` of the output.
    """

    def __init__(self, path: Path, width: int, keep: Sequence[str] = ()) -> None:
        self.path, self.width, self.keep = path, width, keep
        self.part = path.with_name(f".{path.name}.part")
        self._format = FORMATS[path.suffix]
        self._file: HashedFile | None = None

    def holds(self, size: int, sha256: str) -> bool:
        """Return whether the first `size` bytes on disk have this hash."""
        return has_content(self.part, size, sha256)

    def open(self, size: int) -> None:
        """Open the part file to append at `size`, the end of a window; bytes after it are discarded."""
        self._file = HashedFile(self.part, size)

    def append(self, texts: Sequence[str], vectors: Vectors, kept: Kept) -> int:
        """Append a window and return the size of the part file once it is synced to disk.

        Raises:
            OSError: the disk is full; it names the output.
        """
        assert self._file is not None
        with error_path(self.path):
            self._format.append(self._file, texts, vectors, kept)
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
            self._format.finish(part, file, rows, self.width, self.keep)

    def remove(self) -> None:
        """Remove the part file."""
        self.close()
        self.part.unlink(missing_ok=True)


class _Npy:
    def append(self, part: HashedFile, texts: Sequence[str], vectors: Vectors, kept: Kept) -> None:
        part.write(np.ascontiguousarray(vectors).tobytes())

    def finish(self, part: IO[bytes], file: IO[bytes], rows: int, width: int, keep: Sequence[str]) -> None:
        header: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        _copy(part, file)


class _Jsonl:
    def append(self, part: HashedFile, texts: Sequence[str], vectors: Vectors, kept: Kept) -> None:
        for line in json_lines(texts, vectors, kept):
            part.write(line.encode("utf-8"))

    def finish(self, part: IO[bytes], file: IO[bytes], rows: int, width: int, keep: Sequence[str]) -> None:
        _copy(part, file)


class _Parquet:
    """Writer of Parquet files. They end with an index, so the part file is a sequence of Arrow streams."""

    def append(self, part: HashedFile, texts: Sequence[str], vectors: Vectors, kept: Kept) -> None:
        import pyarrow

        flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
        columns = {"text": pyarrow.array(texts, pyarrow.string())}
        columns |= {name: _kept_array([values[name] for values in kept]) for name in kept[0]}
        columns["embedding"] = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        batch = pyarrow.record_batch(list(columns.values()), names=list(columns))
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        part.write(sink.getvalue().to_pybytes())

    def finish(self, part: IO[bytes], file: IO[bytes], rows: int, width: int, keep: Sequence[str]) -> None:
        import pyarrow
        import pyarrow.parquet

        kinds = [("text", pyarrow.string())]
        kinds += [(name, _common_type(part, rows, name)) for name in keep]
        schema = pyarrow.schema([*kinds, ("embedding", pyarrow.list_(pyarrow.float32(), width))])
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            for batch in _batches(part, rows):
                writer.write_table(pyarrow.Table.from_batches([batch]).cast(schema))


def _kept_array(values: list[Any]) -> Any:
    """Return values as an Arrow array; if they have no common scalar type, as texts: numbers and objects in JSON."""
    import pyarrow

    # pyarrow would convert the number 5 to a date if the first value is one
    kinds = {(type(value), getattr(value, "tzinfo", None)) for value in values if value is not None}
    if (len(kinds) <= 1 or kinds <= _NUMBERS) and not kinds & _NESTED:
        with contextlib.suppress(pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
            return pyarrow.array(values)
    return pyarrow.array([None if value is None else _as_text(value) for value in values], pyarrow.string())


_NUMBERS = {(int, None), (float, None)}
_NESTED = {(list, None), (dict, None)}


def _as_text(value: Any) -> str:
    in_json = isinstance(value, bool | int | float | list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if in_json else str(value)


def _common_type(part: IO[bytes], rows: int, name: str) -> Any:
    """Return the type that holds the values of a column in all windows: text if the windows have different types."""
    import pyarrow

    found = {batch.schema.field(name).type for batch in _batches(part, rows)} - {pyarrow.null()}
    if len(found) == 1:
        return found.pop()
    if found == {pyarrow.int64(), pyarrow.float64()}:  # which cannot hold every integer
        holds_all = all(_can_cast(batch.column(name), pyarrow.float64()) for batch in _batches(part, rows))
        return pyarrow.float64() if holds_all else pyarrow.string()
    if found and all(pyarrow.types.is_decimal(kind) for kind in found):
        fields = [pyarrow.schema([pyarrow.field(name, kind)]) for kind in found]
        return pyarrow.unify_schemas(fields, promote_options="permissive").field(name).type
    return pyarrow.string()


def _can_cast(array: Any, kind: Any) -> bool:
    import pyarrow

    try:
        array.cast(kind)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        return False
    return True


def _batches(part: IO[bytes], rows: int) -> Iterator[Any]:
    import pyarrow

    part.seek(0)
    while rows:
        with pyarrow.ipc.open_stream(part) as stream:
            for batch in stream:
                yield batch
                rows -= batch.num_rows


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    while piece := source.read(1 << 22):
        target.write(piece)


FORMATS: dict[str, Format] = {".npy": _Npy(), ".jsonl": _Jsonl(), ".parquet": _Parquet()}
"""Writers by file extension."""
