"""A corpus of any size to a file of vectors, and on again after an interruption."""

import contextlib
import glob
import hashlib
import itertools
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead import __version__
from clearhead.checkpoints import directory
from clearhead.run.encode import EncodeOptions, TextEncoder, Window
from clearhead.run.windows import WINDOW_TEXTS
from clearhead.run.writers import PartFile, check_output
from clearhead.text.corpus import Corpus

log = logging.getLogger(__name__)


class ResumeError(ValueError):
    """An interrupted run that cannot be gone on with, but begun anew."""


@dataclass(frozen=True)
class Counts:
    """What a run has done so far.

    Args:
        texts: texts encoded, each to one vector.
        tokens: their tokens, special ones included.
        truncated: how many of them were longer than the model and have been cut.
    """

    texts: int = 0
    tokens: int = 0
    truncated: int = 0

    def plus(self, window: Window) -> "Counts":
        """These and a window's."""
        return self.and_(Counts(len(window.texts), window.tokens, window.truncated))

    def and_(self, other: "Counts") -> "Counts":
        """These and others."""
        return Counts(self.texts + other.texts, self.tokens + other.tokens, self.truncated + other.truncated)


def encode_corpus(
    encoder: TextEncoder,
    corpus: Corpus,
    output: Path,
    options: EncodeOptions | None = None,
    *,
    resume: bool = False,
    window: int = WINDOW_TEXTS,
    advance: Callable[[int, int], None] = lambda done, tokens: None,
) -> Counts:
    """Encodes a corpus to a file, window by window.

    The vectors stand in a hidden part file until the last one is there; then the file appears. After each window the
    part file and a note of how far it has come are safe on disk. An interrupted run leaves both, and with `resume` it
    goes on from there and ends in the same bytes as a run that was never interrupted.

    Args:
        encoder: the model.
        corpus: the texts.
        output: FILE.npy, .jsonl or .parquet.
        options: as in `TextEncoder.stream`.
        resume: go on with an interrupted run, if there is one.
        window: texts in a window.
        advance: called with the bytes read and the tokens computed since the last call.

    Raises:
        ValueError: a resume of standard input; a `ResumeError` with another model, option or input (with the
            difference).
        OSError: the disk is full.
    """
    check_output(output)
    options = options or EncodeOptions()
    if resume and corpus.total_bytes is None:
        raise ValueError("standard input cannot be resumed: what was read is gone; give a file")
    note = output.with_name(f".{output.name}.resume.json")
    settings = _settings(encoder, corpus, options, window)
    for source in corpus.sources:
        if source != "-" and output.exists() and output.samefile(source):
            raise ValueError(f"{output} is one of the inputs, and would be lost; give another --output")
    part = PartFile(output, encoder.width(options.truncate_dim))
    counts, size = _continued(note, part, settings) if resume else (Counts(), 0)
    if note.exists() and not resume:
        log.warning("%s: an interrupted run is dropped; --resume would go on with it", output)
    opened = False
    try:
        texts = itertools.islice(corpus, counts.texts, None)
        seen_bytes = 0
        for some in encoder.stream(texts, options, window=window):
            if not opened:  # not before: a run that fails at its first text must not cost an interrupted one
                _open(part, note, size)
                opened = True
            size = part.append(some.texts, some.vectors)
            counts = counts.plus(some)
            directory.write_json(note, {"settings": settings, "counts": asdict(counts), "size": size})
            advance(corpus.read_bytes - seen_bytes, some.tokens)
            seen_bytes = corpus.read_bytes
        if not opened:
            _open(part, note, size)
            opened = True
        part.finish(counts.texts)
    except BaseException:
        part.close()
        if opened and counts.texts == 0:
            part.remove()
        elif counts.texts:
            log.warning("%d texts are done; --resume goes on from there", counts.texts)
        raise
    # in this order: a note without its part file would be in the way of the next resume
    note.unlink(missing_ok=True)
    part.remove()
    return counts


def _open(part: PartFile, note: Path, size: int) -> None:
    """Opens the part file, and removes what earlier runs may have left beside it."""
    part.open(size)
    if size == 0:
        note.unlink(missing_ok=True)
    for stale in part.path.parent.glob(f".{glob.escape(part.path.name)}.????????.part"):
        stale.unlink(missing_ok=True)


def _continued(note: Path, part: PartFile, settings: dict[str, Any]) -> tuple[Counts, int]:
    """How far an interrupted run had come; nothing where there was none."""
    if not note.exists():
        return Counts(), 0
    data = directory.read_json(note)
    with contextlib.suppress(KeyError, TypeError):
        former = data["settings"]
        for name, now in settings.items():
            if former[name] != now:
                raise ResumeError(
                    f"{part.path} cannot be resumed: {name} was {json.dumps(former[name])} "
                    f"and is now {json.dumps(now)}; without --resume it starts anew"
                )
        counts, size = Counts(**data["counts"]), data["size"]
        whole = all(type(number) is int and number > 0 for number in (size, counts.texts, counts.tokens))
        if not whole or (part.path.suffix == ".npy" and size != counts.texts * part.width * 4):
            raise TypeError
        if part.part.is_file() and part.part.stat().st_size >= size:
            return counts, size
        raise ResumeError(f"{part.part} is not as long as {note.name} says; without --resume it starts anew")
    raise ResumeError(f"{note} is not what a run leaves; without --resume it starts anew")


def _settings(encoder: TextEncoder, corpus: Corpus, options: EncodeOptions, window: int) -> dict[str, Any]:
    """Everything that the bytes of the output depend on."""
    settings: dict[str, Any] = {
        "model": fingerprint(encoder),
        **asdict(options),
        "precision": str(encoder.dtype).removeprefix("torch."),
        "device": encoder.device.type,
        "compiled": encoder.compiles,
        "window": window,
        "input": corpus.describe(),
        "column": corpus.column,
        "errors": corpus.errors,
        "versions": {"clearhead": __version__, "torch": str(torch.__version__)},
    }
    return settings


def fingerprint(encoder: TextEncoder) -> str:
    """A hash of weights, plan and tokenizer: a folder's name may come to hold another model."""
    digest = hashlib.sha256(repr((encoder.model.config, encoder.settings)).encode())
    digest.update(encoder.tokenizer.as_json().encode())
    for name, tensor in encoder.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
