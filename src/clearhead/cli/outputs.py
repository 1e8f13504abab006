"""Output files of commands."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from clearhead.io.atomic import atomic_file, remove_leftovers
from clearhead.io.json import finite_or_none
from clearhead.io.locks import writer_lock
from clearhead.io.outputs import check_not_input, check_writable

if TYPE_CHECKING:
    from clearhead.data.corpus import Corpus

Result = TypeVar("Result")


def lock_output(context: typer.Context, output: Path, inputs: Iterable[str | Path | None] = ()) -> None:
    """Check that a file can be written, and lock it against other processes until the command ends.

    Args:
        context: the command's context.
        output: the file.
        inputs: the files that the command reads; "-" is standard input.

    Raises:
        ValueError: the path is a folder or an input, its folder is missing or read-only, or another process writes the
            file.
    """
    check_writable(output)
    check_not_input(output, inputs)
    context.with_resource(writer_lock(output))
    remove_leftovers(output)


def check_lines_output(output: Path, as_json: bool) -> None:
    """Check that the extension of an output file fits lines of text, or JSON lines.

    Raises:
        ValueError: it does not.
    """
    if output.suffix in (".parquet", ".npy", ".csv"):
        raise ValueError(f"{output}: this command writes lines of text, or JSON lines with --json, not {output.suffix}")
    if output.suffix == ".jsonl" and not as_json:
        raise ValueError(f"{output}: give --json to write JSON lines")


@contextlib.contextmanager
def line_writer(output: Path | None) -> Iterator[Callable[[str], object]]:
    """Write lines to a file, which appears when the block ends without an error, or to standard output.

    Lock the file first, with `lock_output`.
    """
    if output is not None:
        with atomic_file(output) as file:
            yield lambda line: file.write(f"{line}\n".encode())
        return

    def write(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        if sys.stdin is not None and sys.stdin.isatty():
            sys.stdout.flush()

    yield write
    sys.stdout.flush()


def write_results(
    corpus: "Corpus",
    output: Path | None,
    results: Callable[[Callable[[int, int], None]], Iterable[Result]],
    to_line: Callable[[Result, Mapping[str, Any]], str],
    *,
    description: str,
) -> Iterator[Result]:
    """Write a line for each text of a corpus, with a progress bar, and yield its result.

    Args:
        corpus: the texts.
        output: the file; None for standard output.
        results: returns the result of each text. Its argument moves the progress bar: call it after each batch with the
            number of its texts and tokens.
        to_line: returns the line of a result and of the columns kept with its text.
        description: text before the progress bar.
    """
    from clearhead.finite import error_context
    from clearhead.runtime.progress import BatchProgress, token_progress

    with (
        error_context(location=corpus.location),
        corpus.locate_long_text(),
        line_writer(output) as write,
        token_progress(corpus.total_bytes, shows_progress(output), description=description) as on_step,
    ):
        progress = BatchProgress(corpus, on_step)
        for result in results(progress.on_batch):
            (kept,) = corpus.take_kept(1)
            write(to_line(result, kept))
            yield result
        progress.finish()


def window_texts(corpus: "Corpus", default: int) -> int:
    """Return the number of texts that are computed together: one if they are typed at a terminal, line by line."""
    typed = "-" in corpus.sources and sys.stdin is not None and sys.stdin.isatty()
    return 1 if typed else default


def json_line(values: Mapping[str, Any], kept: Mapping[str, Any]) -> str:
    """Return a JSON object in one line, with other columns of its text; their NaN and infinity are written as null."""
    columns = {name: finite_or_none(value) for name, value in kept.items()}
    return json.dumps({**columns, **values}, ensure_ascii=False, allow_nan=False, default=str)


def kept_columns(keep: str | None, columns: Sequence[str], *, as_json: bool = True) -> list[str]:
    """Return the names in --keep.

    Raises:
        ValueError: the output is not JSON, or a name is invalid or is one of `columns`, the output's own columns.
    """
    from clearhead.data.corpus import check_keep

    if keep is None:
        return []
    if not as_json:
        raise ValueError("--keep requires --json, whose lines have columns")
    names = [name.strip() for name in keep.split(",")]
    check_keep(names, columns)
    return names


def shows_progress(output: Path | None) -> bool:
    """Return whether to show a progress bar: on a terminal, unless it shows the results."""
    return sys.stderr.isatty() and not (output is None and sys.stdout.isatty())
