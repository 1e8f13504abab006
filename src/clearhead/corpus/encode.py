"""Encode a corpus of any size to a file of vectors, and resume after an interruption."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead._version import __version__
from clearhead.corpus.writers import PartFile, check_output
from clearhead.data.corpus import Corpus
from clearhead.data.lines import content_hash
from clearhead.finite import error_context
from clearhead.io.atomic import error_path, remove_leftovers
from clearhead.io.json import read_hashed_json, read_json, write_hashed_json
from clearhead.io.locks import writer_lock
from clearhead.io.outputs import check_not_input
from clearhead.io.safetensors import weights_hash
from clearhead.kernels.native import library
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.precision import INT8
from clearhead.runtime.progress import BatchProgress
from clearhead.runtime.streaming import WINDOW_TEXTS
from clearhead.runtime.vectors import EncodedBatch, EncodeOptions

log = logging.getLogger(__name__)

_FORMAT = 3
"""Format of the resume file: 3 has its own hash."""


class ResumeError(ValueError):
    """An interrupted run that cannot be resumed, but can be started from scratch."""


@dataclass(frozen=True)
class EncodingStats:
    """Progress of a run.

    Args:
        texts: number of encoded texts; each has one vector.
        tokens: their tokens, including special tokens.
        truncated: number of texts that were truncated to the maximum length.
    """

    texts: int = 0
    tokens: int = 0
    truncated: int = 0

    @classmethod
    def read(cls, counts: Mapping[str, Any]) -> "EncodingStats":
        """Return the statistics that a run has written.

        Raises:
            TypeError: a value is not a count.
        """
        stats = cls(**counts)
        if not all(type(number) is int and number >= 0 for number in (stats.texts, stats.tokens, stats.truncated)):
            raise TypeError("expected counts")
        return stats

    def add_batch(self, window: EncodedBatch) -> "EncodingStats":
        """Return the statistics with an encoded batch added."""
        return self.add(EncodingStats(len(window.texts), window.num_tokens, window.num_truncated))

    def add(self, other: "EncodingStats") -> "EncodingStats":
        """Return the sum of two statistics."""
        return EncodingStats(self.texts + other.texts, self.tokens + other.tokens, self.truncated + other.truncated)


def encode_corpus(
    encoder: TextEncoder,
    corpus: Corpus,
    output: Path,
    options: EncodeOptions | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    wait: float = 0.0,
    window_texts: int = WINDOW_TEXTS,
    on_step: Callable[[int, int, int], None] = lambda done, tokens, texts: None,
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
        overwrite: discard an interrupted run, if there is one.
        wait: seconds to wait for another process that writes the same output.
        window_texts: number of texts per window.
        on_step: called after each batch with its bytes, approximately, tokens and texts.

    Raises:
        OutputBusyError: another process writes the same output.
        ResumeError: there is an interrupted run, and neither `resume` nor `overwrite` is set; or it had another model,
            option or input (with the difference), or its files are damaged.
        ValueError: an input that cannot be read twice, such as standard input, with `resume`.
        NonFiniteError: as in `TextEncoder.stream`, with the file and line of the text.
        OSError: the disk is full.
    """
    check_output(output, corpus.keep)
    if resume and not corpus.can_reread:
        raise ValueError("standard input and pipes cannot be resumed, because they cannot be read twice; give a file")
    check_not_input(output, corpus.sources)
    with writer_lock(output, wait=wait):
        if not resume and not overwrite:
            _check_no_interrupted_run(output)
        return _encode(encoder, corpus, output, options or EncodeOptions(), resume, window_texts, on_step)


def _check_no_interrupted_run(output: Path) -> None:
    resume_file = _resume_file(output)
    if not resume_file.exists():
        return
    try:
        counted = f"{read_json(resume_file)['counts']['texts']:,} texts"
    except (ValueError, KeyError, TypeError):
        counted = "some texts"
    raise ResumeError(
        f"an interrupted run has encoded {counted} for {output}; continue it with --resume, or discard it with "
        "--overwrite"
    )


def _resume_file(output: Path) -> Path:
    return output.with_name(f".{output.name}.resume.json")


def _encode(
    encoder: TextEncoder,
    corpus: Corpus,
    output: Path,
    options: EncodeOptions,
    resume: bool,
    window_texts: int,
    on_step: Callable[[int, int, int], None],
) -> EncodingStats:
    resume_file = _resume_file(output)
    settings = run_settings(encoder, corpus, options, window_texts)
    part = PartFile(output, encoder.width(options.truncate_dim), corpus.keep)
    stats, size = _read_resume_file(resume_file, part, settings) if resume else (EncodingStats(), 0)
    opened, num_recorded = False, stats.texts
    progress = BatchProgress(corpus, on_step)
    progress.skip(stats.texts)
    try:
        texts = corpus.read(stats.texts)
        batches = encoder.stream(texts, options, window=window_texts, on_batch=progress.on_batch)
        for batch in locate_errors(batches, corpus, stats.texts):
            if not opened:  # not earlier: a run that fails at its first text must not delete an interrupted one
                _open(part, resume_file, size)
                opened = True
            size = part.append(batch.texts, batch.vectors, corpus.take_kept(len(batch.texts)))
            stats = stats.add_batch(batch)
            write_hashed_json(
                resume_file,
                {
                    "format": _FORMAT,
                    "settings": settings,
                    "counts": asdict(stats),
                    "size": size,
                    "part_sha256": part.sha256,
                },
            )
            num_recorded = stats.texts
        if not opened:
            _open(part, resume_file, size)
            opened = True
        part.finish(stats.texts)
        progress.finish()
    except BaseException:
        part.close()
        if opened and num_recorded == 0:
            part.remove()
        elif num_recorded:
            log.warning("%d texts are done; --resume continues there", num_recorded)
        raise
    # in this order: a resume file without its part file would stop the next --resume
    resume_file.unlink(missing_ok=True)
    part.remove()
    return stats


def locate_errors(windows: Iterator[EncodedBatch], corpus: Corpus, offset: int = 0) -> Iterator[EncodedBatch]:
    """Yield windows of a corpus; a `NonFiniteError` or `LongTextError` gets the file and line of its text.

    Args:
        windows: encoded batches of `TextEncoder.stream`.
        corpus: the corpus that the stream reads.
        offset: number of texts of the corpus before the first of the stream.
    """
    location = lambda index: corpus.location(offset + index)  # noqa: E731
    with corpus.locate_long_text(), error_context(index=offset.__add__, location=location):
        yield from windows


def _open(part: PartFile, resume_file: Path, size: int) -> None:
    """Open the part file, and remove temporary files that killed runs left next to it."""
    if size == 0:
        with error_path(resume_file):
            resume_file.unlink(missing_ok=True)
    part.open(size)
    for path in (part.path, resume_file):
        remove_leftovers(path)


def _read_resume_file(resume_file: Path, part: PartFile, settings: dict[str, Any]) -> tuple[EncodingStats, int]:
    """Return the counts and the part file's size of an interrupted run; zeros if it does not exist.

    Raises:
        ResumeError: the run cannot be continued.
    """
    from_scratch = "with --overwrite instead of --resume, the run starts from scratch"
    if not resume_file.exists():
        return EncodingStats(), 0
    try:
        data = read_json(resume_file)
        if data.get("format") != _FORMAT:
            raise ResumeError(
                f"{resume_file} was written by another version of clearhead and cannot be resumed; {from_scratch}"
            )
        data = read_hashed_json(resume_file)
        former, size, sha256 = dict(data["settings"]), data["size"], data["part_sha256"]
        stats = EncodingStats.read(data["counts"])
        if not all(type(number) is int and number > 0 for number in (size, stats.texts, stats.tokens)):
            raise TypeError
    except ResumeError:
        raise
    except (ValueError, KeyError, TypeError):
        raise ResumeError(
            f"{resume_file} is damaged: it does not describe an interrupted run; {from_scratch}"
        ) from None
    if change := changed_setting(former, settings):
        raise ResumeError(f"{part.path} cannot be resumed: {change}; {from_scratch}")
    if not part.holds(size, sha256):
        raise ResumeError(f"{part.part} does not hold the vectors that {resume_file.name} describes; {from_scratch}")
    return stats, size


def changed_setting(former: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """Return a description of the first setting of a run that differs from those of an interrupted one, or None."""
    for name, now in settings.items():
        if former.get(name) != now:
            before = former.get(name)
            hint = f" (set OMP_NUM_THREADS={before})" if name == "threads" and isinstance(before, int) else ""
            return f"{name} was {json.dumps(before):.200} and is now {json.dumps(now)}{hint}"
    return None


def run_settings(encoder: TextEncoder, corpus: Corpus, options: EncodeOptions, window_texts: int) -> dict[str, Any]:
    """Return everything that the bytes of the output depend on."""
    cpu = encoder.device.type == "cpu"
    settings: dict[str, Any] = {
        "model": fingerprint(encoder),
        **asdict(options),
        "precision": encoder.precision.name,
        "device": encoder.device.type,
        # results depend on the number of threads and on the kernels of the processor
        "threads": torch.get_num_threads() if cpu else None,
        "processor": _instruction_set(encoder) if cpu else None,
        "compiled": encoder.compile,
        "window": window_texts,
        "input": corpus.describe(),
        "column": corpus.column,
        "keep": corpus.keep,
        "errors": corpus.errors,
        "versions": {"clearhead": __version__, "torch": str(torch.__version__)},
    }
    return settings


def _instruction_set(encoder: TextEncoder) -> str | None:
    return library.isa() if encoder.precision.name == INT8.name else torch.backends.cpu.get_cpu_capability()


def fingerprint(encoder: TextEncoder) -> str:
    """Return a hash of weights, config and tokenizer. A folder name does not identify a model.

    The hash includes the file of 8-bit weights if the encoder computes with it.
    """
    settings = repr((encoder.model.config, encoder.settings)) + encoder.tokenizer.as_json()
    if encoder.precision.name == INT8.name and encoder.int8.file is not None:
        settings += str(content_hash(encoder.int8.file))
    return weights_hash(encoder.model.state_dict(), settings.encode())
