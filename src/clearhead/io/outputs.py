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
    """Check that an output is not an input or a folder with one, of a model or a run, or in the folder of an index.

    Args:
        output: the file.
        inputs: the files that are read; None, "-" and missing files are skipped.

    Raises:
        ValueError: it is.

    >>> import pathlib; from clearhead.io.outputs import check_not_input
    >>> check_not_input(pathlib.Path("vectors.npy"), ["texts.txt"])
    """
    for source in inputs:
        if source in (None, "-"):
            continue
        if _is_same(output, source):
            raise ValueError(f"{output} is also an input and would be overwritten; give another output")
        if output.is_dir() and any(_is_same(output, folder) for folder in Path(str(source)).resolve().parents):
            raise ValueError(f"{source} is an input inside the output {output}; give another output")
    if (output.parent / "index.json").is_file() and (output.parent / "documents.jsonl").is_file():
        raise ValueError(f"{output} is inside an index, which has only its own files; give another output")
    if output.is_file() and (output.suffix in _WEIGHTS or _may_be_part(output)):
        raise ValueError(f"{output} may be a part of a model or a run and would be overwritten; give another output")


def _may_be_part(path: Path) -> bool:
    if path.suffix in (".npy", ".parquet", ".html") or (path.suffix == ".txt" and path.name not in _VOCABULARIES):
        return False
    folder = path.parent
    is_model = (folder / "config.json").is_file() and any(file.suffix in _WEIGHTS for file in folder.iterdir())
    # of a sentence-transformers model, one of its modules' folders, a tokenizer or a run
    marks = ("modules.json", "../modules.json", "tokenizer.json", "versions.json")
    return is_model or any((folder / mark).is_file() for mark in marks)


_WEIGHTS = {".safetensors", ".bin", ".ckpt", ".pt", ".pth", ".onnx", ".h5", ".msgpack", ".spm", ".model"}
_VOCABULARIES = ("vocab.txt", "merges.txt")


def _is_same(path: Path, other: Any) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them is missing, or is a text in place of a path
        return False
