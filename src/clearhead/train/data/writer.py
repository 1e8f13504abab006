"""Write a tokenized dataset."""

import contextlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import BaseModel, Field, PositiveInt, model_validator

from clearhead.io.atomic import error_path

Example = Mapping[str, Sequence[int] | int | float]
"""One training example: a sequence field has any number of tokens, a number field one number."""

MANIFEST = "clearhead-store.json"
FORMAT: Literal[1] = 1
TYPE_CODES = {"int": "q", "float": "d"}
"""Array type codes of number fields."""


class Manifest(BaseModel, frozen=True, strict=True):
    """Description of a dataset, in its JSON file.

    Args:
        format: version of the format.
        key: everything that the examples depend on.
        budget: maximum number of tokens of an example over all its sequence fields.
        examples: number of examples.
        order: all fields of an example.
        sequences: those with tokens.
        numbers: those with a number, and its type.
        skipped: number of skipped examples by reason.

    >>> from clearhead.train.data.writer import Manifest
    >>> fields = {"order": ["ids"], "sequences": ["ids"], "numbers": {}}
    >>> Manifest(key="bytes of a.txt", budget=None, examples=1, **fields, skipped={}).format
    1
    """

    format: Literal[1] = FORMAT
    key: str
    budget: int | None
    examples: PositiveInt
    order: list[str]
    sequences: Annotated[list[str], Field(min_length=1)]
    numbers: dict[str, Literal["int", "float"]]
    skipped: dict[str, int]

    @model_validator(mode="after")
    def _check_fields(self) -> "Manifest":
        if sorted(self.order) != sorted([*self.sequences, *self.numbers]):
            raise ValueError(f"the fields {self.order} are not {self.sequences} and {list(self.numbers)}")
        return self


class DatasetWriter:
    """Write examples into the files of a dataset; a chunk stays in memory until `write_chunk`.

    Args:
        part: folder to write into.
        folder: final folder, for messages.
    """

    def __init__(self, part: Path, folder: Path) -> None:
        self.count, self.skipped = 0, Counter[str]()
        self._part, self._folder = part, folder
        self._schema: tuple[tuple[str, str], ...] = ()
        self._files: dict[str, IO[bytes]] = {}
        self._chunk: dict[str, array[int] | array[float]] = {}
        self._ends: list[int] = []

    def __enter__(self) -> "DatasetWriter":
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # data that a full disk rejected; the folder is removed anyway
                file.close()

    def add(self, example: Example) -> None:
        """Add an example to the chunk."""
        schema = tuple((name, _kind(value)) for name, value in example.items())
        if not self._schema:
            self._open(schema)
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

    def write_chunk(self) -> None:
        """Write the chunk to the files."""
        with error_path(self._folder):
            for name, values in self._chunk.items():
                values.tofile(self._files[name])
                self._files[name].flush()
                del values[:]

    def finish(self, key: str, max_tokens: int | None) -> None:
        """Write the manifest and close the files."""
        manifest = Manifest(
            key=key,
            budget=max_tokens,
            examples=self.count,
            order=[name for name, _ in self._schema],
            sequences=[name for name, kind in self._schema if kind == "tokens"],
            numbers={name: kind for name, kind in self._schema if kind != "tokens"},  # type: ignore[misc]
            skipped=dict(self.skipped),
        )
        with error_path(self._folder):
            self._files[MANIFEST] = (self._part / MANIFEST).open("wb")
            self._files[MANIFEST].write(manifest.model_dump_json(indent=1).encode())
            for file in self._files.values():
                file.close()

    def _open(self, schema: tuple[tuple[str, str], ...]) -> None:
        kinds = [kind for _, kind in schema]
        assert "tokens" in kinds, f"an example without a sequence: {schema}"
        numbers = [kind for kind in kinds if kind != "tokens"]
        self._schema, self._ends = schema, [0] * kinds.count("tokens")
        self._chunk = {"lengths": array("i"), "starts": array("q")}
        self._chunk |= {f"tokens-{index}": array("i") for index in range(len(self._ends))}
        self._chunk |= {f"numbers-{index}": array(TYPE_CODES[kind]) for index, kind in enumerate(numbers)}
        with error_path(self._folder):
            self._files = {name: (self._part / f"{name}.bin").open("wb") for name in self._chunk}


def _kind(value: Sequence[int] | int | float) -> str:
    if isinstance(value, int):
        return "int"
    return "float" if isinstance(value, float) else "tokens"
