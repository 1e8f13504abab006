"""Read and write the JSON files of a model folder."""

import contextlib
import dataclasses
import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from clearhead.io.atomic import atomic_file
from clearhead.io.reading import read_file

T = TypeVar("T")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ValueError: the file is missing, or a pipe or a device, or does not contain a JSON object.
    """
    data = _parse_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path} contains a JSON {type(data).__name__}; expected an object")
    return data


def read_json_objects(path: Path) -> list[dict[str, Any]]:
    """Return the JSON array of objects in a file.

    Raises:
        ValueError: the file is missing or does not contain such an array.
    """
    data = _parse_json(path)
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise ValueError(f"{path} is not a JSON array of objects")
    return data


def json_error(error: Exception, text: str) -> str:
    """Return the message of an error of `json.loads`, without Python's advice on integers of thousands of digits.

    Args:
        error: the error.
        text: the text that was parsed.

    >>> from clearhead.io.json import json_error
    >>> json_error(ValueError("Expecting value: line 1 column 5 (char 4)"), "[1, x]")
    'Expecting value: line 1 column 5 (char 4)'
    """
    if "set_int_max_str_digits" not in str(error):
        return str(error)
    limit = sys.get_int_max_str_digits()
    match = re.search(rf"(?<!\d)\d{{{limit + 1},}}", text)
    if match is None:
        return f"an integer has more than {limit} digits"
    line, column = text.count("\n", 0, match.start()) + 1, match.start() - text.rfind("\n", 0, match.start())
    return f"an integer has {len(match[0])} digits, more than {limit}: line {line} column {column}"


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these keys and values: an `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: a key is repeated; `json.loads` alone would keep the last value only.

    >>> import json; from clearhead.io.json import unique_keys
    >>> json.loads('{"a": 1, "b": 2}', object_pairs_hook=unique_keys)
    {'a': 1, 'b': 2}
    """
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {max(counts, key=counts.__getitem__)!r:.80} is repeated")
    return result


def finite_or_none(value: Any) -> Any:
    """Return None for NaN and infinity, which JSON does not have, and every other value unchanged.

    >>> from clearhead.io.json import finite_or_none
    >>> finite_or_none(float("nan")), finite_or_none(1.5), finite_or_none("nan")
    (None, 1.5, 'nan')
    """
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, data: object) -> None:
    """Write indented JSON atomically.

    Raises:
        ValueError: a text has half a surrogate pair, which also encodes a byte of a path that is not UTF-8.
    """
    try:
        content = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{path}: a name or a text to write is not valid Unicode; rename the file or folder") from None
    with atomic_file(path) as file:
        file.write(content)


def json_hash(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, which does not depend on the order of its keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def write_hashed_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON with a hash of it, for `read_hashed_json`; errors as in `write_json`."""
    write_json(path, {**data, "sha256": json_hash(data)})


def read_hashed_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of `write_hashed_json`.

    Raises:
        ValueError: the file is damaged, or as in `read_json`.
    """
    data = read_json(path)
    with contextlib.suppress(RecursionError):  # endless nesting
        if data.pop("sha256", None) == json_hash(data):
            return data
    raise ValueError(f"{path} is damaged: its hash is not that of its content. Remove it to compute it again")


def dataclass_from_json(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return an instance of a dataclass with the values of a JSON object, whose types are checked.

    Args:
        kind: a dataclass of numbers, texts, literals and tuples of them.
        values: the object; a list becomes a tuple.

    Raises:
        ValueError: an unknown or missing key, a wrong type, or a value that the class refuses.

    >>> from clearhead import Seq2SeqConfig
    >>> from clearhead.io.json import dataclass_from_json
    >>> dataclass_from_json(Seq2SeqConfig, {"vocab_size": 100, "eos_ids": [1, 2]}).eos_ids
    (1, 2)
    """
    hints = get_type_hints(kind)
    for field in dataclasses.fields(cast(Any, kind)):
        if field.name not in values and field.default is dataclasses.MISSING:
            raise ValueError(f"{field.name} is missing")
    for name, value in values.items():
        if name not in hints:
            raise ValueError(f"unknown key {name!r:.80}")
        if not _has_type(value, hints[name]):
            raise ValueError(f"{name} is {value!r:.80}")
    return kind(**{name: _converted(value, hints[name]) for name, value in values.items()})


def _has_type(value: object, hint: Any) -> bool:
    """Return whether a JSON value has an annotated type; integers have 64 bits, and a number may be one."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_has_type(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, list) and all(_has_type(item, inner[0]) for item in value)
    if type(value) is int:
        return hint in (int, float) and abs(value) < 2**63
    return type(value) is hint


def _converted(value: object, hint: Any) -> object:
    if isinstance(value, list):
        return tuple(value)
    return float(value) if type(value) is int and float in (hint, *get_args(hint)) else value


def path_text(path: str | Path) -> str:
    r"""Return a path as text for JSON; bytes that are not UTF-8 become escapes.

    >>> from clearhead.io.json import path_text
    >>> path_text("b\udcff.txt")
    'b\\udcff.txt'
    """
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def path_inside(source: Path, name: str) -> Path:
    """Return the path of a file that a model's JSON file refers to, if it is in the model's folder.

    Otherwise a published model could refer to any file on the user's machine, by a path or by a symbolic link. A link
    may point to another file of the folder or, in the Hugging Face Hub's cache, of the same model.

    Args:
        source: the JSON file.
        name: the path in it, relative to its folder.

    Raises:
        ValueError: the path, or the target of a link, is outside the folder, or has characters such as a line end.
    """
    if not name.isprintable():
        raise ValueError(f"{source} names the file {name!r:.200}; expected printable characters")
    if not _is_inside(source.parent, name):
        raise ValueError(
            f"{source} names the file {name!r}, which is outside the model's folder. Copy the file into the folder "
            "and use its path there"
        )
    return source.parent / name


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Escape of a half of a surrogate pair. A tokenizer cannot take a text with one half."""


def _parse_json(path: Path) -> object:
    text = ""
    try:
        content = read_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path.parent} has no {path.name}, which a model folder needs") from None
    try:
        text = content.decode()
        data = json.loads(text, object_pairs_hook=unique_keys)
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except UnicodeEncodeError:
        raise ValueError(
            f"{path} is not valid JSON: it has half a surrogate pair (\\ud800 to \\udfff), which is not Unicode"
        ) from None
    except (ValueError, RecursionError) as error:  # invalid text, a number of 5,000 digits or endless nesting
        raise ValueError(f"{path} is not valid JSON: {json_error(error, text)}") from None


def _is_inside(folder: Path, name: str) -> bool:
    path = PureWindowsPath(name)  # splits at / and \ on all systems
    if path.drive or path.root or ".." in path.parts:
        return False
    try:
        root, target = folder.resolve(), (folder / name).resolve()
    except (OSError, RuntimeError, ValueError):  # circular links, or a null character
        return False
    # the Hub's cache keeps the files of snapshots/ in blobs/
    snapshots = root.parent
    if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
        root = snapshots.parent
    return target.is_relative_to(root)
