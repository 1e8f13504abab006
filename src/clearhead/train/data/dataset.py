"""Tokenised examples on disk: written as they come, mapped to be read; a store may be larger than memory."""

import contextlib
import hashlib
import json
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Int32

from clearhead.data.records import Row
from clearhead.io.atomic import atomic_folder, error_path
from clearhead.io.locks import LOCK_NAME, writer_lock

Example = Mapping[str, Sequence[int] | int | float]
"""What is trained on at once: a sequence field holds as many tokens as it likes, a number field one number."""

Examples = Callable[[Sequence[Row]], Iterable[Sequence[Example]]]
"""For each row its examples: none, one or several."""

CHUNK_ROWS = 1000
_NOTE = "clearhead-store.json"
_FORMAT = 1
_CODES = {"int": "q", "float": "d"}


class TokenizedDataset:
    """The examples in a folder that `build_store` has written.

    Nothing is read before it is asked for; the arrays of an example are views that cannot be written to.

    Args:
        folder: the folder.

    Attributes:
        fields: the sequence fields, in the order of the columns of `lengths`.
        lengths: tokens of each example in each of them.
        skipped: how many examples were left out, by reason.
        key, budget: what the store was built with.

    Raises:
        ValueError: the folder holds no store, or one that is damaged.

    >>> import tempfile, pathlib
    >>> from clearhead.data.records import Row; from clearhead.train.data.dataset import build_store
    >>> def examples(rows): return [[{"ids": list(row.values["text"].encode())}] for row in rows]
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "store"
    >>> store = build_store(folder, [Row({"text": "ab"}, "a.txt, line 1")], examples, key="bytes of a.txt")
    >>> store[0]["ids"].tolist(), store.lengths.tolist()
    ([97, 98], [[2]])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        note = _note(self.folder)
        self.key: str = note["key"]
        self.budget: int | None = note["budget"]
        self.skipped: dict[str, int] = note["skipped"]
        self.fields: tuple[str, ...] = tuple(note["sequences"])
        self._numbers: dict[str, str] = note["numbers"]
        self._order: list[str] = note["order"]
        self._count: int = note["examples"]
        shape = (self._count, len(self.fields))
        self.lengths: Int32[np.ndarray, "N F"] = self._map("lengths", "i", shape)
        self._starts = self._map("starts", "q", shape)
        totals = self._starts[-1] + self.lengths[-1]
        self._tokens = [self._map(f"tokens-{place}", "i", (int(total),)) for place, total in enumerate(totals)]
        self._values = [
            self._map(f"numbers-{place}", _CODES[kind], (self._count,))
            for place, kind in enumerate(self._numbers.values())
        ]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Int32[np.ndarray, " L"] | int | float]:
        """An example, its fields in the order in which they were given."""
        if not -self._count <= index < self._count:
            raise IndexError(f"example {index} of {self._count}")
        starts = self._starts[index].tolist()
        found: dict[str, Any] = {}
        for field, tokens, start, length in zip(
            self.fields, self._tokens, starts, self.lengths[index].tolist(), strict=True
        ):
            found[field] = tokens[start : start + length]
        for field, values in zip(self._numbers, self._values, strict=True):
            found[field] = values[index].item()
        return {field: found[field] for field in self._order}

    def fingerprint(self) -> str:
        """What the examples are, whenever and from whatever files they were built."""
        digest = hashlib.sha256(json.dumps(self._order).encode())
        for path in sorted(self.folder.glob("*.bin")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[type["TokenizedDataset"], tuple[Path]]:
        """Another process maps the files itself: pickled arrays would be copies of all of it."""
        return TokenizedDataset, (self.folder,)

    def _map(self, name: str, code: str, shape: tuple[int, ...]) -> Any:
        path = self.folder / f"{name}.bin"
        wanted = math.prod(shape) * np.dtype(code).itemsize
        size = path.stat().st_size if path.exists() else 0
        if size != wanted:
            raise ValueError(f"{path} is damaged: {size} bytes, {wanted} are wanted; remove {self.folder}")
        # a plain array: the slices of a memmap are ten times as slow
        return np.asarray(np.memmap(path, code, "r", shape=shape))


def build_store(
    folder: Path,
    rows: Iterable[Row],
    examples: Examples,
    *,
    key: str,
    budget: int | None = None,
    strict: bool = False,
) -> TokenizedDataset:
    """The store of the examples that rows become; the one that is there already if it was built alike.

    A store appears whole or not at all: it grows in a hidden folder beside its place. Where several processes want the
    same store, one builds it and the others wait.

    Args:
        folder: its place. A store with another key or budget gives way to the new one.
        rows: the rows, read in chunks; not read where the store is there.
        examples: what makes examples of a chunk of rows.
        key: all that the examples depend on.
        budget: tokens of an example over all its sequence fields, at most; None is no bound.
        strict: refuse an example without tokens or beyond the budget; else it is left out and counted.

    Raises:
        ValueError: a folder that is no store, no example to keep; with `strict` an example that cannot be kept.
        OSError: the disk is full, or the place cannot be written to; it names the folder.

    >>> import tempfile, pathlib
    >>> from clearhead.data.records import Row; from clearhead.train.data.dataset import build_store
    >>> rows = [Row({"text": text}, "here") for text in ("a", "")]
    >>> def examples(rows): return [[{"ids": list(row.values["text"].encode()), "label": 1}] for row in rows]
    >>> build_store(pathlib.Path(tempfile.mkdtemp()) / "store", rows, examples, key="k").skipped
    {'no tokens': 1}
    """
    folder = Path(folder)
    if (store := _usable(folder, key, budget, strict)) is not None:
        return store
    if not _replaceable(folder):
        raise ValueError(f"{folder} is there already and is no store of examples; remove it or give another place")
    with writer_lock(folder, wait=math.inf):
        if (store := _usable(folder, key, budget, strict)) is not None:  # while this process waited, another built it
            return store
        with atomic_folder(folder) as part, _Writer(part, folder) as writer:
            _fill(writer, rows, examples, budget, strict)
            writer.finish(key, budget)
    return TokenizedDataset(folder)


def _fill(writer: "_Writer", rows: Iterable[Row], examples: Examples, budget: int | None, strict: bool) -> None:
    remaining = iter(rows)
    while chunk := list(islice(remaining, CHUNK_ROWS)):
        for row, found in zip(chunk, examples(chunk), strict=True):
            for example in found:
                reason = _unfit(example, budget)
                if reason is None:
                    writer.add(example)
                elif strict:
                    raise ValueError(f"{row.location}: {reason}; mend or remove it, or let such examples be left out")
                else:
                    writer.skipped[reason] += 1
        writer.write()
    if writer.count == 0:
        said = "; ".join(f"{count}: {reason}" for reason, count in writer.skipped.items())
        raise ValueError(f"no examples are left to train on ({said or 'the rows gave none'})")


def _unfit(example: Example, budget: int | None) -> str | None:
    lengths = [len(value) for value in example.values() if not isinstance(value, int | float)]
    if 0 in lengths:
        return "no tokens"
    if budget is not None and sum(lengths) > budget:
        return f"longer than the batch budget of {budget} tokens"
    return None


class _Writer:
    """Examples to the files of a store; a chunk stands in memory until it is written."""

    def __init__(self, part: Path, folder: Path) -> None:
        self.count, self.skipped = 0, Counter[str]()
        self._part, self._folder = part, folder
        self._schema: tuple[tuple[str, str], ...] = ()
        self._files: dict[str, IO[bytes]] = {}
        self._chunk: dict[str, array[int] | array[float]] = {}
        self._ends: list[int] = []

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # what a full disk did not take; the folder goes anyway
                file.close()

    def add(self, example: Example) -> None:
        schema = tuple((name, _kind(value)) for name, value in example.items())
        if not self._schema:
            self._start(schema)
        assert schema == self._schema, f"examples differ: {schema}, and {self._schema} before"
        sequence = number = 0
        for (_, kind), value in zip(schema, example.values(), strict=True):
            if kind == "tokens":
                tokens = self._chunk[f"tokens-{sequence}"]
                before = len(tokens)
                tokens.extend(value)  # type: ignore[arg-type]
                self._chunk["lengths"].append(len(tokens) - before)
                self._chunk["starts"].append(self._ends[sequence])
                self._ends[sequence] += len(tokens) - before
                sequence += 1
            else:
                self._chunk[f"numbers-{number}"].append(value)  # type: ignore[arg-type]
                number += 1
        self.count += 1

    def write(self) -> None:
        """The chunk to the files."""
        with error_path(self._folder):
            for name, values in self._chunk.items():
                values.tofile(self._files[name])
                self._files[name].flush()
                del values[:]

    def finish(self, key: str, budget: int | None) -> None:
        """The note that says what the files hold; they end here."""
        note = {
            "format": _FORMAT,
            "key": key,
            "budget": budget,
            "examples": self.count,
            "order": [name for name, _ in self._schema],
            "sequences": [name for name, kind in self._schema if kind == "tokens"],
            "numbers": {name: kind for name, kind in self._schema if kind != "tokens"},
            "skipped": dict(self.skipped),
        }
        with error_path(self._folder):
            self._files[_NOTE] = (self._part / _NOTE).open("wb")
            self._files[_NOTE].write(json.dumps(note, indent=1).encode())
            for file in self._files.values():
                file.close()

    def _start(self, schema: tuple[tuple[str, str], ...]) -> None:
        kinds = [kind for _, kind in schema]
        assert "tokens" in kinds, f"an example without a sequence: {schema}"
        numbers = [kind for kind in kinds if kind != "tokens"]
        self._schema, self._ends = schema, [0] * kinds.count("tokens")
        self._chunk = {"lengths": array("i"), "starts": array("q")}
        self._chunk |= {f"tokens-{place}": array("i") for place in range(len(self._ends))}
        self._chunk |= {f"numbers-{place}": array(_CODES[kind]) for place, kind in enumerate(numbers)}
        with error_path(self._folder):
            self._files = {name: (self._part / f"{name}.bin").open("wb") for name in self._chunk}


def _kind(value: Sequence[int] | int | float) -> str:
    if isinstance(value, int):
        return "int"
    return "float" if isinstance(value, float) else "tokens"


def _note(folder: Path) -> dict[str, Any]:
    try:
        note = json.loads((folder / _NOTE).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is no store of examples: {error}") from None
    if not isinstance(note, dict) or note.get("format") != _FORMAT:
        raise ValueError(f"{folder} is a store of another version of clearhead; remove it")
    return note


def _replaceable(folder: Path) -> bool:
    if not folder.is_dir():
        return not folder.exists()
    return (folder / _NOTE).exists() or all(path.name == LOCK_NAME for path in folder.iterdir())


def _usable(folder: Path, key: str, budget: int | None, strict: bool) -> TokenizedDataset | None:
    try:
        store = TokenizedDataset(folder)
    except ValueError:
        return None
    if (store.key, store.budget) != (key, budget) or (strict and store.skipped):
        return None
    return store
