"""Compare the vectors of an endpoint, an ONNX graph or a folder of sentence-transformers with those of an index."""

import errno
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np

from clearhead.io.atomic import atomic_file, remove_leftovers
from clearhead.io.json import finite_or_none
from clearhead.io.locks import writer_lock
from clearhead.retrieval.against.systems import vector_of_system
from clearhead.retrieval.canaries import BOUNDS, TEXTS, read_vectors
from clearhead.retrieval.manifest import HISTORY, read_manifest
from clearhead.runtime.vectors import Vectors

_WAIT = 5.0
"""Seconds to wait for another comparison that is being recorded."""
_PARALLEL = 1e-4
"""Relative distance, after both are normalized, of vectors that count as parallel."""
_LONG = 500
"""Characters of a text that may be truncated."""


@dataclass(frozen=True)
class Comparison:
    """Distances of the vectors of another system from those of an index.

    Args:
        target: the system.
        time: when they were compared, in UTC.
        distances: for each of the 32 texts ‖u − v‖ / ‖v‖; None for a text that the system refused.
        bound: the largest distance that the kernels of different processors may cause.
        reason: a common property of the differences, or why texts were refused; "" for nothing to say.
        since: for a system whose vectors differ, when they were last the same and first different; "" if unknown.
    """

    target: str
    time: str
    distances: tuple[float | None, ...]
    bound: float
    reason: str = ""
    since: str = ""

    @property
    def num_different(self) -> int:
        """Number of texts whose vectors differ by more than the bound."""
        return sum(distance is not None and not distance <= self.bound for distance in self.distances)

    @property
    def is_same(self) -> bool:
        """Whether all vectors that the system returned are those of the index."""
        return self.num_different == 0 and any(distance is not None for distance in self.distances)

    @property
    def summary(self) -> str:
        """The result in one line."""
        known = [distance for distance in self.distances if distance is not None]
        target = _in_one_line(self.target)
        if not known:
            return f"{target} returned no vector: {self.reason}"
        refused = len(self.distances) - len(known)
        largest = f"largest relative distance {max(known):.1e}, bound {self.bound:.0e}"
        if self.is_same:
            result = f"{target} has the same vectors for {len(known)} texts: {largest}"
        else:
            result = f"{target} has other vectors for {self.num_different} of {len(known)} texts: {largest}"
        notes = [f"; {refused} texts were refused"] if refused else []
        notes += [f"; {note}" for note in (self.reason, self.since) if note]
        return result + "".join(notes)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, with the result; an infinite distance is None."""
        distances = [finite_or_none(distance) for distance in self.distances]
        return asdict(self) | {"distances": distances, "is_same": self.is_same}


def compare(folder: Path, target: str, name: str | None = None) -> Comparison:
    """Compare the vectors of another system for the 32 texts of an index. `record` adds the result to the index.

    Args:
        folder: the index.
        target: URL of an endpoint with OpenAI's API; an ONNX graph next to its tokenizer; or a folder of
            sentence-transformers. All get the prompt that the index has for documents.
        name: name of the model at an endpoint; None for its only one.

    Raises:
        ValueError: the folder is not an index, the target is none of the three, or a library is missing.
        OSError: the endpoint cannot be reached.
    """
    made_by = read_manifest(folder).encoder
    stored = read_vectors(folder, made_by)
    vector_of = vector_of_system(target, name, made_by)
    vectors, refusals = list[Vectors | None](), list[str]()
    for text in TEXTS:
        try:
            vectors.append(vector_of(str(made_by["prompt"]) + text))
        except ValueError as error:
            vectors.append(None)
            refusals.append(str(error))
    pairs = list(zip(vectors, stored, strict=True))
    distances = tuple(None if vector is None else _distance(vector, own) for vector, own in pairs)
    comparison = Comparison(
        target,
        datetime.now(UTC).isoformat(timespec="seconds"),
        distances,
        BOUNDS.get(str(made_by["precision"]), max(BOUNDS.values())),
    )
    reason = refusals[0] if refusals and not comparison.num_different else _reason(pairs, comparison)
    return Comparison(target, comparison.time, distances, comparison.bound, reason, _since(folder, comparison))


def record(folder: Path, comparison: Comparison) -> None:
    """Add a comparison to the history of an index; an index that may not be written has none.

    Args:
        folder: the index.
        comparison: the comparison.

    Raises:
        OSError: the disk is full or fails.
        OutputBusyError: another process writes the history for more than five seconds.
    """
    path = folder / HISTORY
    try:
        with writer_lock(path, wait=_WAIT):
            remove_leftovers(path)
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "not a file; remove it", str(path))
            lines = path.read_bytes().splitlines() if path.exists() else []
            lines.append(json.dumps(comparison.as_dict(), ensure_ascii=False).encode())
            with atomic_file(path) as file:
                file.writelines(line + b"\n" for line in lines)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def _distance(vector: Vectors, own: Vectors) -> float:
    """Return ‖u − v‖ / ‖v‖; infinity for another width or NaN."""
    if vector.shape != own.shape or not np.isfinite(vector).all():
        return float("inf")
    exact = own.astype(np.float64)  # the square of a large float32 is infinite
    return float(np.linalg.norm(vector - exact) / max(float(np.linalg.norm(exact)), 1e-12))


def _reason(pairs: list[tuple[Vectors | None, Vectors]], comparison: Comparison) -> str:
    """Return a common property of the vectors that differ."""
    known = [(vector, own, text) for (vector, own), text in zip(pairs, TEXTS, strict=True) if vector is not None]
    different = [item for item in known if not _distance(item[0], item[1]) <= comparison.bound]
    if not different:
        return ""
    vector, own, _ = different[0]
    if vector.shape != own.shape:
        return f"they have {vector.size} dimensions, and the index {own.size}"
    if not all(np.isfinite(one).all() for one, _, _ in different):
        return "some hold NaN or infinity"
    if all(_distance(_unit(one), _unit(other)) <= _PARALLEL for one, other, _ in different):
        return "they have the same directions and other lengths: the normalization differs"
    if len(different) < len(known) and all(len(text) > _LONG for _, _, text in different):
        return "only long texts differ: they are truncated at another length"
    if max(_distance(one, other) for one, other, _ in different) <= max(BOUNDS.values()):
        return "another precision, such as bfloat16 or 8 bits, can cause this"
    return (
        f"the mean cosine of those texts is {np.mean([_unit(one) @ _unit(other) for one, other, _ in different]):.3f}"
    )


def _unit(vector: Vectors) -> Vectors:
    exact = vector.astype(np.float64)
    return cast(Vectors, (exact / max(float(np.linalg.norm(exact)), 1e-12)).astype(np.float32))


def _in_one_line(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def _since(folder: Path, comparison: Comparison) -> str:
    """Return when a system that differs now was last the same, and first different after that."""
    if comparison.is_same or not (folder / HISTORY).is_file():
        return ""
    last_same, first_different = "", ""
    for line in (folder / HISTORY).read_bytes().splitlines():
        try:
            past = json.loads(line)
            target, is_same, when = past["target"], past["is_same"], past["time"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a damaged line
        if target != comparison.target or not (isinstance(when, str) and when.isprintable()):
            continue
        if is_same:
            last_same, first_different = when, ""
        elif not first_different:
            first_different = when
    first = first_different or comparison.time
    return f"the same until {last_same}, different since {first}" if last_same else f"different since {first}"
