"""The files of an index, and the JSON file that describes them."""

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

from clearhead._version import __version__
from clearhead.io.atomic import hidden_sibling
from clearhead.io.folders import follow_link, is_renamed
from clearhead.io.json import json_hash, read_json, write_hashed_json
from clearhead.io.locks import LOCK_NAME, check_unlocked, writer_lock

Dtype = Literal["float32", "bfloat16", "int8"]

MANIFEST = "index.json"
"""File that describes an index. It is written last: rows that it does not count do not exist."""
PENDING = "pending.json"
"""File that describes rows that an unfinished run has written, in the same format."""
DOCUMENTS, ENDS = "documents.jsonl", "documents.ends"
"""Texts and columns, one JSON object per line, and the position of the end of each line."""

CODES, BOUNDS = "codes.int8", "bounds.float32"
"""Vectors in 8 bits, and the scale of each one with the norm of its error."""

CANARIES_FILE = "canaries.json"
"""Vectors of some texts, which show whether another machine or version computes the same."""
GRAPH, GRAPH_STATE = "graph.usearch", "graph.json"
"""Graph of the approximate search, made when it is first used, and its size and SHA-256. usearch does not check a file,
and a damaged one would end the process."""
HISTORY = "comparisons.jsonl"
"""One line for each comparison of `verify --against`, the oldest first."""

RESERVED = ("text", "index", "score")
"""Names of columns that search results have."""

_TEXT, _OPTIONAL_TEXT = (str,), (str, NoneType)
_ENCODER: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("model", "precision", "weights", "tokenizer", "pooling", "prompt", "query_prompt"), _TEXT),
    **dict.fromkeys(("revision", "adapter", "int8_weights"), _OPTIONAL_TEXT),
    **dict.fromkeys(("max_length", "truncate_dim"), (int,)),
    "normalize": (bool,),
    "config": (dict,),
    "query_encoder": (dict, NoneType),
}
"""Types of the values that `identity.describe_encoder` returns; the others are compared only."""
_OF_DOCUMENTS = frozenset(
    {"pooling", "normalize", "max_length", "truncate_dim", "prompt", "query_prompt", "query_encoder"}
)
"""Values that the description of the model of queries does not have."""
_MISSING = object()

FORMAT = 1
_NAME = "a clearhead index"


class IndexFolderError(ValueError):
    """A folder that is not a usable index."""


@dataclass(frozen=True)
class FileState:
    """Size and SHA-256 of the valid part of a file."""

    size: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """Description of an index.

    Args:
        width: number of columns of a vector.
        dtype: dtype of the fast pass over all rows.
        columns: names of the columns that are kept with each text.
        encoder: the model and the settings that made the vectors, from `identity.describe_encoder`.
        rows: number of documents.
        max_norm: the largest norm of a vector.
        files: state of each file.
        settings: settings of an unfinished run, which must be the same to resume it.
    """

    width: int
    dtype: Dtype
    columns: list[str]
    encoder: dict[str, Any]
    rows: int = 0
    max_norm: float = 0.0
    files: dict[str, FileState] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def row_bytes(self) -> dict[str, int]:
        """Bytes per row of each file with rows of one size."""
        sizes = {vectors_file(self.dtype): self.width * (2 if self.dtype == "bfloat16" else 4), ENDS: 8}
        return sizes | ({CODES: self.width, BOUNDS: 8} if self.dtype == "int8" else {})

    def write(self, path: Path) -> None:
        """Write the description atomically."""
        data = {"format": FORMAT, "kind": _NAME, "clearhead": __version__, **dataclasses.asdict(self)}
        write_hashed_json(path, data)


def vectors_file(dtype: Dtype) -> str:
    """Return the name of the file with the vectors."""
    return "vectors.bfloat16" if dtype == "bfloat16" else "vectors.float32"


def is_index(folder: Path) -> bool:
    """Return whether a folder is an index, of any version."""
    try:
        return read_json(folder / MANIFEST).get("kind") == _NAME
    except (ValueError, NotADirectoryError):
        return False


def check_is_index(folder: Path) -> None:
    """Check that a folder, whose lock is held, is an index without other files, or empty.

    Raises:
        OutputBusyError: another process writes a file in it.
        ValueError: it is something else, or has other files.
    """
    if folder.is_dir() and not any(path.name != LOCK_NAME for path in folder.iterdir()):
        return
    if not folder.is_dir() or not is_index(folder):
        raise ValueError(f"{folder} exists and is not an index; give another output")
    check_unlocked(folder)
    own = {MANIFEST, PENDING, DOCUMENTS, ENDS, CODES, BOUNDS, CANARIES_FILE, GRAPH, GRAPH_STATE, HISTORY, LOCK_NAME}
    own |= {vectors_file(dtype) for dtype in get_args(Dtype)}
    for path in sorted(folder.iterdir()):
        left = path.name.startswith(".") and path.suffix in (".part", ".lock")  # by a killed process
        if path.is_dir() or not (path.name in own or left):
            raise ValueError(f"{folder} contains {path.name}, which is not of the index and would be deleted; move it")


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest:
    """Return the description of an index, after a check of the sizes of its files.

    Args:
        folder: the index.
        name: `MANIFEST` or `PENDING`.

    Raises:
        OutputBusyError: the folder does not exist yet, because another process is writing it.
        IndexFolderError: the folder is not an index, is of another version, is damaged or lacks data.
    """
    if not (folder / name).is_file():
        raise _no_index(folder)
    try:
        data = read_json(folder / name)
    except ValueError as error:
        raise IndexFolderError(f"{error}. Copy or build the index again") from None
    if data.get("kind") != _NAME:
        raise _no_index(folder)
    if type(data.get("format")) is not int or data["format"] != FORMAT:
        version = " ".join(str(data.get("clearhead")).split())
        raise IndexFolderError(
            f"{folder} has format {data.get('format')!r:.40} of clearhead {version:.40}, and this version reads "
            f"format {FORMAT}. Build the index again, or install that version"
        )
    manifest = _parse(folder / name, data)
    _check_encoder(folder / name, manifest)
    for file, state in manifest.files.items():
        size = (folder / file).stat().st_size if (folder / file).is_file() else 0
        if size < state.size:
            raise IndexFolderError(
                f"{folder} is cut short: {file} has {size:,} bytes, expected {state.size:,}. Copy or build it again"
            )
    return manifest


def _parse(path: Path, data: dict[str, Any]) -> Manifest:
    names = {field.name for field in dataclasses.fields(Manifest)}
    try:
        if data.pop("sha256") != json_hash(data):
            raise ValueError
        values = {name: data[name] for name in names}
        values["files"] = {name: FileState(**state) for name, state in values["files"].items()}
        manifest = Manifest(**values)
        sizes = {name: manifest.files[name].size for name in manifest.row_bytes}
        expected = {name: manifest.rows * size for name, size in manifest.row_bytes.items()}
        if not _has_valid_types(manifest) or sizes != expected:
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise IndexFolderError(f"{path} is damaged. Copy or build the index again") from None
    return manifest


def _has_valid_types(manifest: Manifest) -> bool:
    """Return whether the values have the types of the class, which JSON may not have."""
    counts = [manifest.width, manifest.rows, *(state.size for state in manifest.files.values())]
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and manifest.dtype in get_args(Dtype)
        and type(manifest.max_norm) in (int, float)
        and 0 <= manifest.max_norm <= sys.float_info.max
        and isinstance(manifest.columns, list)
        and all(isinstance(column, str) and column for column in manifest.columns)
        and not {*manifest.columns} & {*RESERVED}
        and len({*manifest.columns}) == len(manifest.columns)
        and isinstance(manifest.encoder, dict)
        and DOCUMENTS in manifest.files
        and isinstance(manifest.settings, dict)
    )


def _check_encoder(path: Path, manifest: Manifest) -> None:
    """Check the values that describe the model.

    Raises:
        IndexFolderError: a value is missing, has another type, or is not one that the model can have.
    """
    from clearhead.models.config import POOLINGS  # imports torch, which reading a folder without an index does not need

    def damaged(name: str, what: str) -> IndexFolderError:
        return IndexFolderError(f"{path} is damaged: encoder.{name} {what}. Copy or build the index again")

    description = manifest.encoder
    of_queries = description.get("query_encoder")
    parts = [(description, "", set(_ENCODER))]
    if isinstance(of_queries, dict):
        parts.append((of_queries, "query_encoder.", _ENCODER.keys() - _OF_DOCUMENTS))
    for part, prefix, names in parts:
        for name in sorted(names):
            value = part.get(name, None if NoneType in _ENCODER[name] else _MISSING)
            if type(value) not in _ENCODER[name]:
                raise damaged(prefix + name, "is missing" if value is _MISSING else f"is {value!r:.60}")
    if description["pooling"] not in POOLINGS:
        raise damaged("pooling", f"is {description['pooling']!r:.60}")
    if description["max_length"] < 1:
        raise damaged("max_length", f"is {description['max_length']}")
    if description["truncate_dim"] != manifest.width:
        raise damaged("truncate_dim", f"is {description['truncate_dim']}, and the width is {manifest.width}")


def _no_index(folder: Path) -> IndexFolderError:
    folder = follow_link(folder)
    if not folder.exists():
        if folder.with_name(f".{folder.name}.lock").is_file():
            with writer_lock(folder):  # raises an error that names the process that is writing
                pass
        if is_renamed(folder):
            earlier = hidden_sibling(folder, "old")
            return IndexFolderError(
                f"a run that replaced {folder} was killed, and left it as {earlier}. Run it again, or rename it back"
            )
        if hidden_sibling(folder, "part").is_dir():
            return IndexFolderError(
                f"{folder} is not complete: the run that built it was interrupted. Continue it with --resume"
            )
        return IndexFolderError(f"no such index: {folder}. Build it with `clearhead index`")
    return IndexFolderError(f"{folder} is not an index: it has no {MANIFEST} of `clearhead index`")
