"""Build an index from a corpus, append to it, and resume after an interruption."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.corpus.encode import EncodingStats, ResumeError, changed_setting, locate_errors, run_settings
from clearhead.data.corpus import Corpus, check_keep
from clearhead.io.atomic import atomic_file, error_path, hidden_sibling, remove_leftovers
from clearhead.io.folders import check_no_link, follow_link, replace_folder, restore_folder, sync_folder
from clearhead.io.json import read_json
from clearhead.io.locks import LOCK_NAME, writer_lock
from clearhead.io.outputs import check_not_input
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.retrieval import canaries, identity
from clearhead.retrieval.files import IndexWriter
from clearhead.retrieval.manifest import (
    CANARIES_FILE,
    MANIFEST,
    PENDING,
    RESERVED,
    Dtype,
    Manifest,
    check_is_index,
    is_index,
    read_manifest,
)
from clearhead.runtime.progress import BatchProgress
from clearhead.runtime.streaming import WINDOW_TEXTS
from clearhead.runtime.vectors import EncodeOptions, Vectors
from clearhead.tokenizers.base import check_not_blank

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class BuildOptions:
    """Options of a run that writes an index.

    Args:
        dtype: dtype of the fast pass over all rows.
        encode: arguments of `TextEncoder.encode` for documents. By default vectors are normalized, and get the model's
            prompt for documents, if it has one.
        query_prompt: name or text of the prompt of queries; None for the model's prompt for queries, if it has one.
        query_adapter: adapter of queries, as in `identity.load_query_encoder`.
        resume: continue an interrupted run, if there is one.
        overwrite: discard an interrupted run, and replace an existing index; for an append, only the former.
        window_texts: number of texts that are computed and written together.
    """

    dtype: Dtype = "int8"
    encode: EncodeOptions = dataclasses.field(default_factory=EncodeOptions)
    query_prompt: str | None = None
    query_adapter: str | None = None
    resume: bool = False
    overwrite: bool = False
    window_texts: int = WINDOW_TEXTS


OnStep = Callable[[int, int, int], None]
"""Called after each batch with its bytes, approximately, tokens and texts."""


class ListedTexts(Corpus):
    """Texts in memory, with other columns.

    Args:
        texts: the texts.
        columns: the values of each column, by name.

    Raises:
        ValueError: an item is not a string, a column has another length, or its name is invalid.
    """

    def __init__(self, texts: Sequence[str], columns: dict[str, Sequence[Any]]) -> None:
        check_keep(list(columns), RESERVED)
        super().__init__([], keep=list(columns))
        self.texts, self.columns = texts, columns
        for name, values in columns.items():
            if len(values) != len(texts):
                raise ValueError(f"the column {name!r} has {len(values)} values for {len(texts)} texts")

    def read(self, start: int = 0) -> Iterator[str]:
        """Yield the texts from number `start` on."""
        self._kept.clear()
        for number in range(start, len(self.texts)):
            self.texts_read = number + 1
            if self.keep:
                self._kept.append([values[number] for values in self.columns.values()])
            yield self.texts[number]

    def describe(self) -> list[list[str | None]]:
        """Return a hash of the texts and columns."""
        contents = json.dumps([list(self.texts), {name: list(of) for name, of in self.columns.items()}], default=str)
        return [["texts", hashlib.sha256(contents.encode()).hexdigest()]]

    def location(self, index: int) -> str:
        """Return the name of a text in messages."""
        return f"document {index}"


def build_index(
    encoder: TextEncoder, corpus: Corpus, folder: Path, options: BuildOptions, on_step: OnStep
) -> EncodingStats:
    """Write a new index, which appears when it is complete.

    A hidden folder next to it receives the files, window by window. An interrupted run leaves it, so that the next run
    can resume. No other process can write the index until this run has ended.

    Args:
        encoder: the model.
        corpus: the documents, with the columns to keep.
        folder: the index.
        options: options of the run.
        on_step: called after each batch.

    Raises:
        OutputBusyError: another process writes the index.
        ResumeError: there is an interrupted run, and neither resume nor overwrite is set; or it had another model,
            option or input.
        ValueError: the folder exists and is not replaced; a document is blank or not text, with its file and line.
    """
    check_keep(corpus.keep, RESERVED)
    folder = follow_link(folder)
    _check_location(folder)
    check_not_input(folder, corpus.sources)
    _check_resumable(corpus, options)
    with writer_lock(folder):
        with error_path(folder):
            restore_folder(folder)
        _check_replaceable(folder, options)
        query_encoder = identity.load_query_encoder(encoder, options.query_adapter)
        made_by = identity.describe_encoder(encoder, options.encode, options.query_prompt, query_encoder)
        for tokenizing, prompt in ((encoder, "prompt"), (query_encoder, "query_prompt")):  # checks these options
            tokenizing.tokenize([""], max_length=made_by["max_length"], prompt=made_by[prompt])
        part = hidden_sibling(folder, "part")
        check_no_link(part)
        if part.exists() and not (options.resume and (part / PENDING).exists()):
            if not options.overwrite and (part / PENDING).exists():
                raise _interrupted(part, folder)
            shutil.rmtree(part)  # without PENDING it can be the index that a killed run had replaced
        with error_path(folder):
            part.mkdir(exist_ok=True)
        for name in (MANIFEST, PENDING, CANARIES_FILE):
            remove_leftovers(part / name)
        empty = Manifest(made_by["truncate_dim"], options.dtype, list(corpus.keep), made_by)
        run = _Run(encoder, corpus, part, empty, options, on_step)
        try:
            stats, manifest = run.write()
        except BaseException:
            if not (part / PENDING).exists():
                shutil.rmtree(part, ignore_errors=True)
            raise
        canaries.write(part, encoder, query_encoder, made_by)
        manifest.write(part / MANIFEST)
        _put_in_place(part, folder)
    return stats


def append_to_index(
    encoder: TextEncoder, corpus: Corpus, folder: Path, options: BuildOptions, on_step: OnStep
) -> EncodingStats:
    """Append documents to an index. They appear all at once, when the last one is written.

    Args:
        encoder, corpus, folder, on_step: as in `build_index`.
        options: options of the run; the default of each setting of vectors is that of the index, and so is the dtype.

    Raises:
        OtherModelError: the index has another model or other settings.
        ValueError: as in `build_index`; the columns are not those of the index; overwrite is set, and there is no
            interrupted append.
    """
    read_manifest(folder)
    check_not_input(folder, corpus.sources)
    _check_resumable(corpus, options)
    with writer_lock(folder):
        manifest = read_manifest(folder)
        if options.overwrite and not (folder / PENDING).exists():  # the user may expect the index to be replaced
            raise ValueError(
                f"{folder} has no interrupted append that --overwrite could discard; omit --overwrite to add the "
                "documents, or omit --append to replace the index"
            )
        identity.check_same_model(folder, manifest.encoder, encoder)
        canaries.check(folder, encoder, manifest.encoder)
        if options.query_adapter is not None:
            stored = (manifest.encoder.get("query_encoder") or manifest.encoder).get("adapter")
            identity.check_same_adapter(folder, stored, options.query_adapter, " for queries")
        former = identity.options_of(manifest.encoder)
        given = {name: value for name, value in dataclasses.asdict(options.encode).items() if value is not None}
        query_prompt = manifest.encoder["query_prompt"] if options.query_prompt is None else options.query_prompt
        now = identity.describe_encoder(encoder, dataclasses.replace(former, **given), query_prompt)
        identity.check_same_settings(folder, manifest.encoder, now)
        if sorted(corpus.keep) != sorted(manifest.columns):
            raise ValueError(
                f"{folder} keeps the columns {', '.join(manifest.columns) or '(none)'}, and these documents have "
                f"{', '.join(corpus.keep) or '(none)'}; give the same ones with --keep"
            )
        for name in (MANIFEST, PENDING):
            remove_leftovers(folder / name)
        run = _Run(encoder, corpus, folder, manifest, options, on_step)
        if (finished := run.finished()) is not None:
            (folder / PENDING).unlink()
            return finished
        if not options.resume and (folder / PENDING).exists():
            if not options.overwrite:
                raise _interrupted(folder, folder)
            (folder / PENDING).unlink()
        stats, manifest = run.write()
        manifest.write(folder / MANIFEST)  # from here on, the new rows exist
        (folder / PENDING).unlink(missing_ok=True)
    return stats


class _Run:
    """One run that appends the documents of a corpus to the files of a folder.

    Args:
        folder: the folder.
        start: the index without the documents of the run.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        corpus: Corpus,
        folder: Path,
        start: Manifest,
        options: BuildOptions,
        on_step: OnStep,
    ) -> None:
        self._encoder, self._corpus, self._folder, self._options = encoder, corpus, folder, options
        self._encode = identity.options_of(start.encoder)
        self._progress = BatchProgress(corpus, on_step)
        self._start, self._settings = start, dict[str, Any]()

    def write(self) -> tuple[EncodingStats, Manifest]:
        """Append the documents; return the statistics of the run, and the index with them."""
        stats, manifest = self._resumed()
        done = manifest.rows - self._start.rows
        writer = IndexWriter(self._folder, manifest)
        self._progress.skip(done)
        try:
            texts = _checked(self._corpus, done)
            batches = self._encoder.stream(
                texts,
                dataclasses.replace(self._encode, batch_tokens=self._options.encode.batch_tokens),
                window=self._options.window_texts,
                on_batch=self._progress.on_batch,
            )
            for batch in locate_errors(batches, self._corpus, done):
                manifest = writer.append(batch.texts, self._corpus.take_kept(len(batch.texts)), batch.vectors)
                stats = stats.add_batch(batch)
                settings = {**self._settings, "stats": dataclasses.asdict(stats)}
                dataclasses.replace(manifest, settings=settings).write(self._folder / PENDING)
            if not manifest.files:  # no documents
                manifest = writer.append([], [], self._empty_vectors())
            self._progress.finish()
        except BaseException:
            if (self._folder / PENDING).exists():
                log.warning("%d documents are done; --resume continues there", manifest.rows - self._start.rows)
            raise
        finally:
            writer.close()
        return stats, manifest

    def finished(self) -> EncodingStats | None:
        """Return the statistics of a run that was killed when the index had its rows, before it removed `PENDING`.

        Raises:
            ResumeError: there is such a run, which only --resume completes: any other run would add its rows again.
        """
        if not (self._folder / PENDING).exists():
            return None
        manifest = read_manifest(self._folder, PENDING)
        if (manifest.rows, manifest.files) != (self._start.rows, self._start.files):
            return None
        if not self._options.resume:
            raise ResumeError(
                f"{self._folder} has all documents of an interrupted run; complete it with --resume, which adds none"
            )
        self._describe(manifest.settings.get("rows_before"))
        return self._stats(manifest)

    def _empty_vectors(self) -> Vectors:
        return np.empty((0, self._start.width), np.float32)

    def _resumed(self) -> tuple[EncodingStats, Manifest]:
        """Return the statistics and the rows of an interrupted run, or of none."""
        self._describe(self._start.rows)
        if not (self._options.resume and (self._folder / PENDING).exists()):
            return EncodingStats(), self._start
        manifest = read_manifest(self._folder, PENDING)
        return self._stats(manifest), dataclasses.replace(manifest, settings={})

    def _describe(self, rows_before: Any) -> None:
        """Set the settings that must be the same to resume the run."""
        if self._corpus.can_reread:
            self._settings = run_settings(self._encoder, self._corpus, self._encode, self._options.window_texts)
            self._settings |= {"dtype": self._start.dtype, "rows_before": rows_before}

    def _stats(self, manifest: Manifest) -> EncodingStats:
        """Return the statistics of an interrupted run.

        Raises:
            ResumeError: it has other settings, or its file is damaged.
        """
        from_scratch = "with --overwrite instead of --resume, the run starts from scratch"
        if change := changed_setting(manifest.settings, self._settings):
            raise ResumeError(f"{self._folder} cannot be resumed: {change}; {from_scratch}")
        try:
            return EncodingStats.read(manifest.settings["stats"])
        except (KeyError, TypeError):
            raise ResumeError(f"{self._folder / PENDING} is damaged; {from_scratch}") from None


def _put_in_place(part: Path, folder: Path) -> None:
    """Rename a complete index. If that fails, --resume can complete the run without encoding anything again."""
    pending, new = part / PENDING, part.stat()
    with error_path(folder):
        sync_folder(part)  # this may take long, and a run that is killed in it can be resumed, too
    note = pending.read_bytes() if pending.exists() else b""
    pending.unlink(missing_ok=True)
    try:
        replace_folder(part, folder, check_is_index)
    except BaseException:
        # after an exchange that cannot be undone, this is the name of the earlier index
        if part.exists() and os.path.samestat(part.stat(), new):
            if note:
                with contextlib.suppress(OSError), atomic_file(pending) as file:
                    file.write(note)
            if not pending.exists():  # no documents, or a full disk
                shutil.rmtree(part, ignore_errors=True)
        raise


def _checked(corpus: Corpus, start: int) -> Iterator[str]:
    """Yield the documents from number `start` on, and raise an error for one without words."""
    for number, text in enumerate(corpus.read(start), start):
        if not text.strip():
            check_not_blank(text, f"{corpus.location(number)}: the document")
        yield text


def _check_resumable(corpus: Corpus, options: BuildOptions) -> None:
    if options.resume and options.overwrite:
        raise ValueError("give --resume to continue an interrupted run, or --overwrite to discard it, not both")
    if options.resume and not corpus.can_reread:
        raise ValueError("standard input and pipes cannot be resumed, because they cannot be read twice; give a file")


def _check_location(folder: Path) -> None:
    if folder.name in ("", ".."):
        raise ValueError(f"{folder} is no name for an index; give a new folder, such as {folder / 'my-index'}")
    for parent in folder.resolve().parents:
        if is_index(parent):
            raise ValueError(f"{folder} is inside the index {parent}, which --overwrite replaces; give another output")


def _check_replaceable(folder: Path, options: BuildOptions) -> None:
    if not folder.exists():
        return
    if folder.is_dir() and not any(path.name != LOCK_NAME for path in folder.iterdir()):
        return
    check_is_index(folder)
    if not options.overwrite:
        raise ValueError(f"{folder} exists; add documents with --append, or replace the index with --overwrite")


def _interrupted(part: Path, folder: Path) -> ResumeError:
    try:
        counted = f"{read_json(part / PENDING)['settings']['stats']['texts']:,} documents"
    except (ValueError, KeyError, TypeError):
        counted = "some documents"
    return ResumeError(
        f"an interrupted run has encoded {counted} for {folder}; continue it with --resume, or discard it with "
        "--overwrite"
    )
