"""Check outputs before they are computed."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def check_writable(path: Path) -> None:
    """Check that a file can be written, before computing its contents.

    Raises:
        ValueError: the path is a folder, a device or a pipe, or its folder is missing or not writable.

    >>> import tempfile, pathlib; from clearhead.io.outputs import check_writable
    >>> check_writable(pathlib.Path(tempfile.mkdtemp()) / "a.txt")
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or a pipe, which a file would replace; give a file")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path}: the folder {path.parent} is not writable")


def check_not_input(output: Path, inputs: Iterable[str | Path | None]) -> None:
    """Check that an output is not one of the inputs, or a file of a model or an index.

    Args:
        output: the file.
        inputs: the files that are read; None, "-" and missing files are skipped.

    Raises:
        ValueError: it is.

    >>> import pathlib; from clearhead.io.outputs import check_not_input
    >>> check_not_input(pathlib.Path("vectors.npy"), ["texts.txt"])
    """
    if any(source not in (None, "-") and _is_same(output, source) for source in inputs):
        raise ValueError(f"{output} is also an input and would be overwritten; give another output")
    is_own = output.name in _MODEL_NAMES or output.suffix in _MODEL_SUFFIXES
    for name in ("config.json", "index.json"):
        if is_own and output.is_file() and (output.parent / name).is_file():
            raise ValueError(f"{output} is part of a model or an index and would be overwritten; give another output")


_MODEL_NAMES = {
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "modules.json", "index.json", "documents.jsonl", "training.json"),
}
_MODEL_SUFFIXES = {".safetensors", ".bin", ".spm", ".model", ".usearch", ".float32", ".bfloat16", ".int8"}
"""Files of models and indexes, next to their config.json or index.json."""


def _is_same(path: Path, other: Any) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them is missing, or is a text in place of a path
        return False
