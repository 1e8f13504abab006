"""Vectors to files: the format follows the file's ending."""

import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from clearhead.files import whole_file

Vectors = NDArray[np.float32]


def check_output(path: Path) -> None:
    """Whether vectors can be written to a path, before anything is computed.

    Raises:
        ValueError: an unknown ending, a folder that is missing or not writable, or an extra that is not installed.
    """
    if path.suffix not in _WRITERS:
        raise ValueError(f"{path}: the ending says the format, one of {', '.join(_WRITERS)}; got {path.suffix!r}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a file is wanted")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path}: the folder {path.parent} cannot be written to")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError('Parquet needs pyarrow: pip install "clearhead[parquet]"')


def write_vectors(path: Path, texts: Sequence[str], vectors: Vectors) -> None:
    """Writes one vector for each text: .npy the array alone, .jsonl and .parquet with the text beside it.

    The file appears whole or not at all.

    Args:
        path: where to; its ending says the format.
        texts: n texts.
        vectors: (n, d), float32.
    """
    check_output(path)
    with whole_file(path) as file:
        _WRITERS[path.suffix](file, texts, vectors)


def json_lines(texts: Sequence[str], vectors: Vectors) -> Iterator[str]:
    """A JSON object for each text, {"text": ..., "embedding": [...]}, numbers as short as float32 allows."""

    for text, vector in zip(texts, vectors, strict=True):
        yield f'{{"text": {json.dumps(text, ensure_ascii=False)}, "embedding": [{", ".join(vector.astype(str))}]}}\n'


def _write_npy(file: IO[bytes], texts: Sequence[str], vectors: Vectors) -> None:
    np.save(file, vectors)


def _write_jsonl(file: IO[bytes], texts: Sequence[str], vectors: Vectors) -> None:
    for line in json_lines(texts, vectors):
        file.write(line.encode("utf-8"))


def _write_parquet(file: IO[bytes], texts: Sequence[str], vectors: Vectors) -> None:
    import pyarrow
    import pyarrow.parquet

    flat = pyarrow.array(vectors.reshape(-1))
    table = pyarrow.table(
        {
            "text": pyarrow.array(texts, pyarrow.string()),
            "embedding": pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
    )
    pyarrow.parquet.write_table(table, file)


_WRITERS: dict[str, Callable[[IO[bytes], Sequence[str], Vectors], None]] = {
    ".npy": _write_npy,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
