"""Encode a corpus of any size to a file of vectors, and resume after an interruption."""

import glob
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead._version import __version__
from clearhead.corpus.writers import PartFile, check_output
from clearhead.data.corpus import Corpus
from clearhead.finite import naming
from clearhead.io.json import read_json, write_json
from clearhead.io.locks import writer_lock
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.streaming import WINDOW_TEXTS
from clearhead.runtime.vectors import EncodedBatch, EncodeOptions

log = logging.getLogger(__name__)


_FORMAT = 2
"""Format of the resume file: 2 identifies the inputs and the part file by hash, 1 did so by size and time."""


class ResumeError(ValueError):
    """An interrupted run that cannot be resumed, but can be started from scratch."""


@dataclass(frozen=True)
class EncodingStats:
    """What a run has done so far.

    Args:
        texts: texts encoded, each to one vector.
        tokens: their tokens, special ones included.
        truncated: how many of them were longer than the model and have been cut.
    """

    texts: int = 0
    tokens: int = 0
    truncated: int = 0

    def plus(self, window: EncodedBatch) -> "EncodingStats":
        """These and a window's."""
        return self.and_(EncodingStats(len(window.texts), window.num_tokens, window.num_truncated))

    def and_(self, other: "EncodingStats") -> "EncodingStats":
        """These and others."""
        return EncodingStats(self.texts + other.texts, self.tokens + other.tokens, self.truncated + other.truncated)


def encode_corpus(
    encoder: TextEncoder,
    corpus: Corpus,
    output: Path,
    options: EncodeOptions | None = None,
    *,
    resume: bool = False,
    wait: float = 0.0,
    window: int = WINDOW_TEXTS,
    advance: Callable[[int, int], None] = lambda done, tokens: None,
) -> EncodingStats:
    """Encode a corpus to a file, window by window.

    A hidden part file next to the output receives the vectors; the output appears when the last one is written. After
    each window the part file and a resume file that describes it are synced to disk. An interrupted run leaves both:
    with `resume`, the next run continues there and ends in the same bytes as an uninterrupted run. No other process can
    write the output until this run has ended.

    Args:
        encoder: the model.
        corpus: the texts.
        output: FILE.npy, .jsonl or .parquet.
        options: as in `TextEncoder.stream`.
        resume: continue an interrupted run, if there is one.
        wait: seconds to wait for another process that writes the same output.
        window: texts in a window.
        advance: called with the bytes read and the tokens computed since the last call.

    Raises:
        OutputBusyError: another process writes the same output.
        ResumeError: the interrupted run had another model, option or input (with the difference), or its files are
            damaged.
        ValueError: an input that can be read only once, such as standard input, with `resume`.
        NonFiniteError: as in `TextEncoder.stream`, with the file and line of the text.
        OSError: the disk is full.
    """
    check_output(output)
    if resume and not corpus.can_reread:
        raise ValueError("standard input and pipes cannot be resumed: what was read is gone; give a file")
    for source in corpus.sources:
        if source != "-" and output.exists() and output.samefile(source):
            raise ValueError(f"{output} is one of the inputs, and would be lost; give another --output")
    with writer_lock(output, wait=wait):
        return _encode(encoder, corpus, output, options or EncodeOptions(), resume, window, advance)


def _encode(
    encoder: TextEncoder,
    corpus: Corpus,
    output: Path,
    options: EncodeOptions,
    resume: bool,
    window: int,
    advance: Callable[[int, int], None],
) -> EncodingStats:
    note = output.with_name(f".{output.name}.resume.json")
    settings = _settings(encoder, corpus, options, window)
    part = PartFile(output, encoder.width(options.truncate_dim))
    counts, size = _continued(note, part, settings) if resume else (EncodingStats(), 0)
    if note.exists() and not resume:
        log.warning("%s: dropped an interrupted run; --resume would have continued it", output)
    opened = False
    try:
        texts = itertools.islice(corpus, counts.texts, None)
        seen_bytes = 0
        for some in with_lines(encoder.stream(texts, options, window=window), corpus, counts.texts):
            if not opened:  # not before: a run that fails at its first text must not cost an interrupted one
                _open(part, note, size)
                opened = True
            size = part.append(some.texts, some.vectors)
            counts = counts.plus(some)
            write_json(
                note,
                {
                    "format": _FORMAT,
                    "settings": settings,
                    "counts": asdict(counts),
                    "size": size,
                    "sha256": part.sha256,
                },
            )
            advance(corpus.bytes_read - seen_bytes, some.num_tokens)
            seen_bytes = corpus.bytes_read
        if not opened:
            _open(part, note, size)
            opened = True
        part.finish(counts.texts)
    except BaseException:
        part.close()
        if opened and counts.texts == 0:
            part.remove()
        elif counts.texts:
            log.warning("%d texts are done; --resume continues there", counts.texts)
        raise
    # in this order: a resume file without its part file would stop the next --resume
    note.unlink(missing_ok=True)
    part.remove()
    return counts


def with_lines(windows: Iterator[EncodedBatch], corpus: Corpus, before: int = 0) -> Iterator[EncodedBatch]:
    """Yield windows of a corpus; a `NonFiniteError` among them gets the file and line of its text.

    Args:
        windows: from `TextEncoder.stream`.
        corpus: what the stream reads.
        before: texts of the corpus before the stream's first.
    """
    with naming(index=before.__add__, where=lambda index: corpus.location(before + index)):
        yield from windows


def _open(part: PartFile, note: Path, size: int) -> None:
    """Open the part file, and remove temporary files that killed runs left next to it."""
    part.open(size)
    if size == 0:
        note.unlink(missing_ok=True)
    for stale in part.path.parent.glob(f".{glob.escape(part.path.name)}.????????.part"):
        stale.unlink(missing_ok=True)


def _continued(note: Path, part: PartFile, settings: dict[str, Any]) -> tuple[EncodingStats, int]:
    """Return the counts and the part file's size of an interrupted run; zeros if there is none.

    Raises:
        ResumeError: the run cannot be continued.
    """
    again = "without --resume the run starts from scratch"
    if not note.exists():
        return EncodingStats(), 0
    try:
        data = read_json(note)
        if data.get("format") != _FORMAT:
            raise ResumeError(f"{note} was written by another version of clearhead and cannot be resumed; {again}")
        former, size, sha256 = dict(data["settings"]), data["size"], data["sha256"]
        counts = EncodingStats(**data["counts"])
        if not all(type(number) is int and number > 0 for number in (size, counts.texts, counts.tokens)):
            raise TypeError
    except ResumeError:
        raise
    except (ValueError, KeyError, TypeError):
        raise ResumeError(f"{note} is damaged: it does not describe an interrupted run; {again}") from None
    for name, now in settings.items():
        if former.get(name) != now:
            hint = f" (set OMP_NUM_THREADS={former.get(name)})" if name == "threads" else ""
            raise ResumeError(
                f"{part.path} cannot be resumed: {name} was {json.dumps(former.get(name))} "
                f"and is now {json.dumps(now)}{hint}; {again}"
            )
    if not part.holds(size, sha256):
        raise ResumeError(f"{part.part} does not hold the vectors that {note.name} describes; {again}")
    return counts, size


def _settings(encoder: TextEncoder, corpus: Corpus, options: EncodeOptions, window: int) -> dict[str, Any]:
    """Return everything that the bytes of the output depend on."""
    cpu = encoder.device.type == "cpu"
    settings: dict[str, Any] = {
        "model": fingerprint(encoder),
        **asdict(options),
        "precision": encoder.precision.name,
        "device": encoder.device.type,
        # sums are split between the threads, by kernels for this processor
        "threads": torch.get_num_threads() if cpu else None,
        "processor": torch.backends.cpu.get_cpu_capability() if cpu else None,
        "compiled": encoder.compile,
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
