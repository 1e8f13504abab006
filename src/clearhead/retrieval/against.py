"""Compare the vectors of an endpoint, an ONNX graph or a folder of sentence-transformers with those of an index."""

import errno
import http.client
import importlib.metadata
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from clearhead.io.atomic import atomic_file, remove_leftovers
from clearhead.io.json import finite_or_none
from clearhead.io.locks import writer_lock
from clearhead.models.heads import pool
from clearhead.retrieval.canaries import BOUNDS, TEXTS, read_vectors
from clearhead.retrieval.manifest import HISTORY, read_manifest
from clearhead.runtime.onnx import OnnxGraph
from clearhead.runtime.vectors import Vectors
from clearhead.tokenizers.tokenizer import Tokenizer

_TIMEOUT = 60.0
"""Seconds that an endpoint has for a whole answer."""
_MAX_BYTES = 64 * 2**20
"""Maximum size of an answer: a vector of a million columns has about 20 MB."""
_WAIT = 5.0
"""Seconds to wait for another comparison that is being recorded."""
_PARALLEL = 1e-4
"""Relative distance, after both are normalized, of vectors that count as parallel."""
_LONG = 500
"""Characters of a text that may be truncated."""

VectorOf = Callable[[str], Vectors]
"""Returns the vector (d) of a text. A ValueError says why the system refused it."""


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
    vector_of = _opened(target, name, made_by)
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


def _opened(target: str, name: str | None, made_by: Mapping[str, Any]) -> VectorOf:
    """Return the function that computes vectors with a target."""
    if target.lower().startswith(("http://", "https://")):
        return _endpoint(target, name)
    path = Path(target)
    if path.suffix == ".onnx":
        return _onnx_graph(path, made_by)
    if target and path.is_dir():
        return _sentence_transformer(path, bool(made_by["normalize"]))
    raise ValueError(
        f"{target or 'an empty name'} is none of the systems to compare: expected the URL of an endpoint, "
        "a .onnx file, or a folder of sentence-transformers"
    )


def _endpoint(url: str, name: str | None) -> VectorOf:
    base = url.rstrip("/").removesuffix("/embeddings")
    base = base if base.endswith("/v1") else f"{base}/v1"
    model = _only_model(base) if name is None else name

    def vector_of(text: str) -> Vectors:
        answer = _request(f"{base}/embeddings", {"model": model, "input": text})
        try:
            values = answer["data"][0]["embedding"]
            if all(type(value) in (int, float) for value in values):
                with np.errstate(over="ignore"):  # infinity is a difference
                    return np.array(values, np.float32)
        except (KeyError, IndexError, TypeError, OverflowError):
            pass
        raise ValueError(f"{base}/embeddings returned no embedding: {_start(json.dumps(answer))}")

    return vector_of


def _only_model(base: str) -> str:
    answer = _request(f"{base}/models")
    try:
        names = [str(model["id"]) for model in answer["data"]]
    except (KeyError, TypeError):
        raise ValueError(f"{base}/models lists no models; name the model of the endpoint with --name") from None
    if len(names) != 1:
        listed = _start(", ".join(names) or "(none)")
        raise ValueError(f"{base} has the models {listed}; choose one with --name")
    return names[0]


def _request(url: str, body: object = None) -> Any:
    """Return the JSON that a URL answers, with the key in OPENAI_API_KEY if it is set."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        if not (key.isascii() and key.isprintable()):
            raise ValueError("OPENAI_API_KEY has a line break or another character that no key has; set it again")
        headers["authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
        content = _answer(request)
    except urllib.error.HTTPError as error:
        with error:
            if error.code in range(300, 400) and (location := error.headers.get("location")):
                raise OSError(
                    f"{url} answered {error.code}: it has moved to {_start(location)}; give that URL"
                ) from None
            if error.code in (400, 413, 422) and body is not None:
                raise ValueError(f"{url} answered {error.code}: {_refusal(error)}") from None
            raise OSError(f"{url} answered {error.code}: {_start(str(error.reason))}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise OSError(f"{url} cannot be reached: {_start(str(reason)) or type(error).__name__}") from None
    except (http.client.InvalidURL, ValueError) as error:
        raise ValueError(f"{url} is not a URL: {_start(str(error))}") from None
    except (http.client.HTTPException, OverflowError) as error:  # of a chunk's size
        raise OSError(f"{url} did not answer as HTTP requires: {_start(str(error))}") from None
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{url} answered with more than {_MAX_BYTES // 2**20} MB")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{url} did not answer with JSON") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key is for one server."""

    def redirect_request(self, *arguments: object) -> None:
        """Do not follow a redirect."""


def _answer(request: urllib.request.Request) -> bytes:
    """Return the bytes of an answer that is complete in time.

    urllib limits the time of each read only, so a server that sends single bytes would never end it.
    """
    results = list[bytes | Exception]()

    def read() -> None:
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT) as answer:
                results.append(answer.read(_MAX_BYTES + 1))
        except Exception as error:  # raised again below
            results.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    result = results[0] if results else TimeoutError(f"no complete answer in {_TIMEOUT:g} s")
    if isinstance(result, Exception):
        raise result
    return result


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        return _start(error.read(1000).decode(errors="replace"))
    except (OSError, http.client.HTTPException, OverflowError):
        return "(an incomplete answer)"


def _start(text: str) -> str:
    """Return the start of a server's text, in one line."""
    return _in_one_line(text[:200])


def _in_one_line(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def _onnx_graph(path: Path, made_by: Mapping[str, Any]) -> VectorOf:
    graph = OnnxGraph(path)
    folder = next(
        (parent for parent in (path.parent, path.parent.parent) if (parent / "tokenizer.json").is_file()), None
    )
    if folder is None:
        raise ValueError(f"there is no tokenizer.json next to {path}; copy that of the model there")
    tokenizer = Tokenizer.from_folder(folder)

    def vector_of(text: str) -> Vectors:
        ids = torch.tensor([tokenizer.encode([text], made_by["max_length"])[0].ids])
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        outputs = graph.run({name: tensor for name, tensor in given.items() if name in graph.inputs})
        if "sentence_embedding" in outputs:
            vector = graph.check("sentence_embedding", outputs["sentence_embedding"].float(), 1, None)
        else:
            name = next((name for name, tensor in outputs.items() if tensor.ndim == 3), None)
            if name is None:
                raise ValueError(f"{path} has no output with a vector for each text or token")
            hidden = graph.check(name, outputs[name].float(), *ids.shape, None)
            vector = pool(hidden, torch.ones_like(ids, dtype=torch.bool), made_by["pooling"])
            if made_by["normalize"]:
                vector = torch.nn.functional.normalize(vector, dim=-1)
        return cast(Vectors, vector[0].numpy())

    return vector_of


def _sentence_transformer(folder: Path, normalize: bool) -> VectorOf:
    needed = "comparing a folder needs sentence-transformers 6 or later"
    try:
        version = importlib.metadata.version("sentence-transformers")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(f'{needed}: pip install "sentence-transformers>=6"') from None
    if int(version.partition(".")[0]) < 6:
        raise ValueError(f"{needed}: {version}, which is installed, runs code that it finds in a folder")
    from sentence_transformers import SentenceTransformer

    def unable(error: Exception) -> ValueError:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return ValueError(f"{folder}: sentence-transformers cannot use it: {reason}")

    try:
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    except Exception as error:  # of its libraries, without a common base class
        raise unable(error) from None

    def vector_of(text: str) -> Vectors:
        try:
            vector = model.encode([text], prompt="", normalize_embeddings=normalize, show_progress_bar=False)
            return np.asarray(vector[0], np.float32)
        except Exception as error:
            raise unable(error) from None

    return vector_of


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
