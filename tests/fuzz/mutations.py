"""Hostile changes of JSON values, bytes, files and ONNX graphs."""

import copy
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 10**30, -(10**30)),
    *(10**400, 0.0, -0.0, 0.5, -0.5, 1.0, 1.5, 32.0, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *("", " ", "x", "0", "1", "true", "null", "NaN", "wide", "../x", "/etc/passwd", ".", "..", "a\0b", "a\nb", "é", "日本", "\ud800"),
    *("[UNK]", "[CLS]", "</s>", "x" * 1000, [], [[]], [0], [None], ["x"], [1, 2, 3], [-1], {}, {"x": 1}, {"": {}}, [{}], [[1, [2]]]),
]  # fmt: skip
"""Values of the wrong type, out of range, not representable, or with another meaning."""


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def paths(
    data: Any, prefix: tuple[Any, ...] = (), limit: int = 40, inner_limit: int | None = None
) -> list[tuple[Any, ...]]:
    """Return the keys of each value in JSON data.

    Args:
        data: the data.
        prefix: keys of the data in an object around it.
        limit: maximum number of items of the data.
        inner_limit: maximum number of items of each object or list in it. Defaults to limit.
    """
    inner_limit = inner_limit or limit
    found = [prefix] if prefix else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for number, (key, value) in enumerate(items):
        if number < limit:
            found += paths(value, (*prefix, key), inner_limit)
    return found


def get(data: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path."""
    for key in path:
        data = data[key]
    return data


def change_value(data: Any, random: Random, preferred: tuple[tuple[Any, ...], ...] = ()) -> tuple[Any, str]:
    """Return a changed copy of JSON data, and a description.

    Args:
        data: lists, mappings and values.
        random: the random number generator.
        preferred: paths of values that are changed more often.
    """
    data = copy.deepcopy(data)
    places = [*paths(data), *preferred]
    if not places:
        return random.choice(VALUES), "the whole"
    short = [place for place in places if len(place) < 3]
    path = random.choice(random.choice([places, short or places]))
    inner, last = get(data, path[:-1]), path[-1]
    where = ".".join(map(str, path))
    kind = random.choice(["value"] * 8 + ["delete", "other", "add", "near", "deep", "repeat"])
    if kind == "delete":
        del inner[last]
        return data, f"{where} deleted"
    if kind == "near" and isinstance(inner[last], int | float) and not isinstance(inner[last], bool):
        steps = [-1, 1, inner[last], -2 * inner[last], *([0.5] if abs(inner[last]) < 2**1000 else [])]
        value = inner[last] + random.choice(steps)
    elif kind == "other":
        value = copy.deepcopy(get(data, random.choice(places)))
    elif kind == "deep":
        value = nested(random.choice([5, 100, 300]))
    elif kind == "repeat" and isinstance(inner[last], list | str):
        value = inner[last] * random.choice([0, 2, 50])
    elif kind == "add" and isinstance(inner, dict):
        last = random.choice(["x", "", "__class__", f"{last}_x", str(last).upper(), "é"])
        value = random.choice(VALUES)
    else:
        value = random.choice(VALUES)
    inner[last] = value
    return data, f"{where} = {repr(value)[:80]}"


def json_text(data: Any, random: Random) -> bytes:
    """Return JSON, with half surrogates as they are half of the time."""
    text = json.dumps(data, ensure_ascii=random.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def change_bytes(data: bytes, random: Random) -> tuple[bytes, str]:
    """Return changed bytes and a description."""
    size = len(data)
    start = random.randrange(size) if size else 0
    if size and random.random() < 0.3:  # headers and magic bytes
        start = random.randrange(min(size, 64))
    kinds = ["flip", "flip", "many", "cut", "cut", "zeros", "insert", "double", "remove", "empty", "random", "deep"]
    match random.choice(kinds):
        case "flip":
            changed = bytearray(data)
            if size:
                changed[start] ^= 1 << random.randrange(8)
            return bytes(changed), f"bit of byte {start} flipped"
        case "many":
            changed = bytearray(data)
            for _ in range(random.choice([3, 30, 300]) if size else 0):
                changed[random.randrange(size)] = random.randrange(256)
            return bytes(changed), "many bytes changed"
        case "cut":
            return data[:start], f"cut to {start} bytes"
        case "zeros":
            length = random.choice([1, 8, 100, 4096])
            return data[:start] + bytes(min(length, size - start)) + data[start + length :], f"zeros from byte {start}"
        case "insert":
            piece = random.choice([b"\0", b"\xff\xfe", b"\n", b'"', b"\xed\xa0\x80", random.randbytes(20)])
            return data[:start] + piece + data[start:], f"{piece!r} inserted at byte {start}"
        case "double":
            return data + data, "contents twice"
        case "remove":
            return data[:start] + data[start + random.choice([1, 4, 100]) :], f"bytes removed from {start}"
        case "empty":
            return b"", "empty"
        case "deep":
            return data[:start] + b"[" * 100_000, f"100,000 brackets from byte {start}"
        case _:
            return random.randbytes(random.choice([1, 8, 100, 1000])), "random bytes"


WITH_END = ("delete", "folder", "loop", "dangling", "other", "private")
WITHOUT_END = ("pipe", "device")
"""Replacements of a file: the second ones are allowed as input data, which then never ends."""


def change_file(path: Path, random: Random, others: list[Path], kinds: Sequence[str] = WITH_END + WITHOUT_END) -> str:
    """Delete a file, or replace it by something that is no such file; return a description."""
    content = path.read_bytes()
    path.unlink()
    match random.choice(kinds):
        case "folder":
            path.mkdir()
            return "a folder"
        case "loop":
            path.symlink_to(path.name)
            return "a link to itself"
        case "dangling":
            path.symlink_to("nowhere")
            return "a link to nothing"
        case "pipe":
            os.mkfifo(path)
            return "a pipe"
        case "device":
            path.symlink_to("/dev/zero")
            return "a device without end"
        case "other":
            other = random.choice(
                [file for file in others if file.is_file()] or [path]
            )  # not a pipe or a link to itself
            path.write_bytes(other.read_bytes() if other != path else content)
            return f"the contents of {other.name}"
        case "private":
            path.write_bytes(content)
            os.chmod(path, 0)
            return "not readable"
        case _:
            return "deleted"


def make_constant(path: Path, output: str, values: np.ndarray) -> None:
    """Make an output of an ONNX graph a constant."""
    model = onnx.load(path)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["before" if name == output else name for name in names]
    constant = onnx.helper.make_node("Constant", [], [output], value=onnx.numpy_helper.from_array(values))
    model.graph.node.append(constant)
    described = next(one for one in model.graph.output if one.name == output)
    kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    described.CopyFrom(onnx.helper.make_tensor_value_info(output, kind, None))
    onnx.save(model, path)
