"""Tokenized datasets on disk: written in chunks, memory-mapped for reading, and not limited by memory."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from pydantic import ValidationError

from clearhead.data.records import Row
from clearhead.io.folders import atomic_folder
from clearhead.io.locks import LOCK_NAME, remove_stale_lock, writer_lock
from clearhead.io.reading import read_file
from clearhead.train.data.writer import MANIFEST, TYPE_CODES, DatasetWriter, Example, Manifest

Examples = Callable[[Sequence[Row]], Iterable[Sequence[Example]]]
"""Converts each row to its examples: none, one or several."""

CHUNK_ROWS = 1000
_CHECKED_ROWS = 1_000_000
"""Rows of the positions that are checked together, so that the memory is small."""


class NoExamplesError(ValueError):
    """No row has an example that can be used."""


class TokenizedDataset:
    """The examples in a folder that `build_dataset` wrote.

    Examples are read on access; their arrays are read-only views.

    Args:
        folder: the folder.

    Attributes:
        fields: sequence fields, in the order of the columns of `lengths`.
        lengths: tokens of each example in each of them.
        skipped: number of skipped examples by reason.
        key, max_tokens: arguments that the dataset was built with.

    Raises:
        ValueError: the folder contains no dataset, or a damaged one.

    >>> import tempfile, pathlib
    >>> from clearhead.data.records import Row; from clearhead.train.data.dataset import build_dataset
    >>> def examples(rows): return [[{"ids": list(row.values["text"].encode())}] for row in rows]
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "dataset"
    >>> dataset = build_dataset(folder, [Row({"text": "ab"}, "a.txt, line 1")], examples, key="bytes of a.txt")
    >>> dataset[0]["ids"].tolist(), dataset.lengths.tolist()
    ([97, 98], [[2]])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        manifest = _read_manifest(self.folder)
        self.key, self.max_tokens = manifest.key, manifest.budget
        self.skipped, self.fields = manifest.skipped, tuple(manifest.sequences)
        self._numbers, self._order, self._count = manifest.numbers, manifest.order, manifest.examples
        shape = (self._count, len(self.fields))
        self.lengths: Int32[np.ndarray, "N F"] = self._map("lengths", "i", shape)
        self._starts = self._map("starts", "q", shape)
        self._check_starts()
        totals = self._starts[-1] + self.lengths[-1]
        self._tokens = [self._map(f"tokens-{number}", "i", (int(total),)) for number, total in enumerate(totals)]
        self._values = [
            self._map(f"numbers-{number}", TYPE_CODES[kind], (self._count,))
            for number, kind in enumerate(self._numbers.values())
        ]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Int32[np.ndarray, " L"] | int | float]:
        """Return an example with its fields in their original order."""
        if not -self._count <= index < self._count:
            raise IndexError(f"example {index} of {self._count}")
        starts, lengths = self._starts[index].tolist(), self.lengths[index].tolist()
        values: dict[str, Any] = {}
        for field, tokens, start, length in zip(self.fields, self._tokens, starts, lengths, strict=True):
            values[field] = tokens[start : start + length]
        for field, numbers in zip(self._numbers, self._values, strict=True):
            values[field] = numbers[index].item()
        return {field: values[field] for field in self._order}

    def fingerprint(self) -> str:
        """Return a hash of the examples, which is independent of the input files and the time."""
        digest = hashlib.sha256(json.dumps(self._order).encode())
        for path in sorted(self.folder.glob("*.bin")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[type["TokenizedDataset"], tuple[Path]]:
        """Pickle only the folder: another process maps the files itself instead of copying their contents."""
        return TokenizedDataset, (self.folder,)

    def _check_starts(self) -> None:
        """Check that the tokens of each example follow those of the one before."""
        end = np.zeros(len(self.fields), np.int64)
        for first in range(0, self._count, _CHECKED_ROWS):
            lengths, starts = (array[first : first + _CHECKED_ROWS] for array in (self.lengths, self._starts))
            ends = end + np.cumsum(lengths, axis=0, dtype=np.int64)
            if (lengths < 0).any() or not np.array_equal(starts, ends - lengths):
                raise ValueError(f"{self.folder / 'starts.bin'} is damaged; remove {self.folder}")
            end = ends[-1]

    def _map(self, name: str, code: str, shape: tuple[int, ...]) -> Any:
        return map_array(self.folder / f"{name}.bin", code, shape)


def map_array(path: Path, code: str, shape: tuple[int, ...]) -> Any:
    """Return the array in a file, memory-mapped.

    Args:
        path: the file, whose folder is named in the error.
        code: type code of the elements.
        shape: shape of the array.

    Raises:
        ValueError: the file has another size.

    >>> import tempfile, pathlib; from clearhead.train.data.dataset import map_array
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "lengths.bin"; _ = path.write_bytes(bytes(8))
    >>> map_array(path, "i", (1, 2)).tolist()
    [[0, 0]]
    """
    expected = math.prod(shape) * np.dtype(code).itemsize
    size = path.stat().st_size if path.exists() else 0
    if size != expected:
        raise ValueError(f"{path} is damaged: {size} bytes, expected {expected}; remove {path.parent}")
    # a plain array, because slicing a memmap is ten times slower
    return np.asarray(np.memmap(path, code, "r", shape=shape))


def build_dataset(
    folder: Path,
    rows: Iterable[Row],
    examples: Examples,
    *,
    key: str,
    max_tokens: int | None = None,
    strict: bool = False,
) -> TokenizedDataset:
    """Build the dataset of some rows, or reuse the one in the folder if its key and limit are the same.

    The dataset appears atomically: it is written into a hidden folder next to its destination. If several processes
    need the same dataset, one builds it and the others wait.

    Args:
        folder: destination. A dataset with another key or limit is replaced.
        rows: the rows, read in chunks; not read if the dataset exists.
        examples: converts a chunk of rows to examples.
        key: everything that the examples depend on.
        max_tokens: maximum number of tokens of an example over all its sequence fields; None for no limit.
        strict: raise an error for an example without tokens or beyond the limit, instead of skipping it.

    Raises:
        NoExamplesError: no row has an example.
        ValueError: a folder that is not a dataset, or with `strict` an example that cannot be used.
        OSError: the disk is full, or the destination is not writable; the error names the folder.

    >>> import tempfile, pathlib
    >>> from clearhead.data.records import Row; from clearhead.train.data.dataset import build_dataset
    >>> rows = [Row({"text": text}, "here") for text in ("a", "")]
    >>> def examples(rows): return [[{"ids": list(row.values["text"].encode()), "label": 1}] for row in rows]
    >>> build_dataset(pathlib.Path(tempfile.mkdtemp()) / "dataset", rows, examples, key="k").skipped
    {'no tokens': 1}
    """
    folder = Path(folder)
    if (dataset := _reusable(folder, key, max_tokens, strict)) is not None:
        remove_stale_lock(folder)
        return dataset
    if not _is_replaceable(folder):
        raise ValueError(f"{folder} exists and is not a tokenized dataset; remove it or choose another folder")
    with writer_lock(folder, wait=math.inf):
        # another process may have built it while this one waited
        if (dataset := _reusable(folder, key, max_tokens, strict)) is not None:
            return dataset
        with atomic_folder(folder) as part, DatasetWriter(part, folder) as writer:
            _write_all(writer, rows, examples, max_tokens, strict)
            writer.finish(key, max_tokens)
    return TokenizedDataset(folder)


def _write_all(
    writer: DatasetWriter, rows: Iterable[Row], examples: Examples, max_tokens: int | None, strict: bool
) -> None:
    remaining = iter(rows)
    while chunk := list(islice(remaining, CHUNK_ROWS)):
        for row, row_examples in zip(chunk, examples(chunk), strict=True):
            for example in row_examples:
                reason = _reason_to_skip(example, max_tokens)
                if reason is None:
                    writer.add(example)
                elif strict:
                    raise ValueError(
                        f"{row.location}: {reason}; fix or remove it, or allow skipping with data.strict=false"
                    )
                else:
                    writer.skipped[reason] += 1
        writer.write_chunk()
    if writer.count == 0:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in writer.skipped.items())
        raise NoExamplesError(f"no examples are left to train on ({reasons or 'the rows have none'})")


def _reason_to_skip(example: Example, max_tokens: int | None) -> str | None:
    lengths = [len(value) for value in example.values() if not isinstance(value, int | float)]
    if 0 in lengths:
        return "no tokens"
    if max_tokens is not None and sum(lengths) > max_tokens:
        return f"longer than data.batch_tokens={max_tokens}"
    return None


def _read_manifest(folder: Path) -> Manifest:
    try:
        content = read_file(folder / MANIFEST)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is not a tokenized dataset: {error}") from None
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        found = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ValueError(f"{folder / MANIFEST} is damaged or of another version ({found}); remove {folder}") from None


def _is_replaceable(folder: Path) -> bool:
    if not folder.is_dir():
        return not folder.exists()
    return (folder / MANIFEST).exists() or all(path.name == LOCK_NAME for path in folder.iterdir())


def _reusable(folder: Path, key: str, max_tokens: int | None, strict: bool) -> TokenizedDataset | None:
    try:
        dataset = TokenizedDataset(folder)
    except ValueError:
        return None
    if (dataset.key, dataset.max_tokens) != (key, max_tokens) or (strict and dataset.skipped):
        return None
    return dataset
