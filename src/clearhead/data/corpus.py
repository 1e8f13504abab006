"""Stream texts from files: lines of text or columns of tables."""

import contextlib
import io
import itertools
import logging
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from gzip import GzipFile
from pathlib import Path
from typing import Any, get_args

from clearhead.choices import check_choice
from clearhead.data.file_formats import check_text_format
from clearhead.data.lines import Errors, check_file, content_hash, open_bytes, strip_newline, text_lines
from clearhead.data.parquet import check_parquet, parquet_rows
from clearhead.data.tables import Cells, Column, json_rows, separated_rows

log = logging.getLogger(__name__)

DEFAULT_COLUMN = "text"
_ADVICE = "use --errors replace to insert replacement characters"


class Corpus:
    """Texts of one or several files, in order.

    The file extension determines the format. .jsonl: the value of `column` in the object on each line. .parquet: the
    column. .csv and .tsv with a `column`: the column. All other files and standard input: lines of text. All formats
    except .parquet may be gzipped (.gz).

    Args:
        sources: the files; "-" is standard input.
        column: the name of the column in .jsonl and .parquet files; "text" if None. In .csv and .tsv files a name in
            the first line, or a number from 0 without such a line; if None, they are lines of text.
        errors: how to handle bytes that are not UTF-8: "strict" raises, "replace" inserts U+FFFD.

    Raises:
        ValueError: a file does not exist or is a folder; a Parquet file has no such text column; a column is given for
            files without columns. While iterating: bytes are not UTF-8, a line is not a JSON object or has no text in
            the column; the message names file and line.

    >>> from clearhead.data.corpus import Corpus
    >>> Corpus(["-"]).total_bytes is None
    True
    """

    def __init__(self, sources: Sequence[str | Path], *, column: str | None = None, errors: Errors = "strict") -> None:
        check_choice("errors", errors, get_args(Errors))
        self.sources = [str(source) for source in sources]
        self.column, self.errors = column, errors
        self.bytes_read = 0
        self._starts: list[int] = []  # number of the first text of each source
        for source in self.sources:
            self._check(source)

    @property
    def total_bytes(self) -> int | None:
        """Size of all files in bytes; None if standard input is one of them."""
        if "-" in self.sources:
            return None
        return sum(Path(source).stat().st_size for source in self.sources)

    @property
    def can_reread(self) -> bool:
        """Whether all sources are regular files; standard input and pipes can only be read once."""
        return all(source != "-" and Path(source).is_file() for source in self.sources)

    def describe(self) -> list[list[str | None]]:
        """Return each file with the SHA-256 of its contents; None for a source that can only be read once."""
        return [[str(Path(source).resolve()), content_hash(Path(source))] for source in self.sources if source != "-"]

    def __iter__(self) -> Iterator[str]:
        """Yield the texts; `bytes_read` is the approximate progress."""
        self.bytes_read, self._starts = 0, []
        bytes_before = number = 0
        for source in self.sources:
            self._starts.append(number)
            for text in self._texts(source):
                yield text
                number += 1
            if number == self._starts[-1]:
                log.warning("%s contains no texts", source_name(source))
            if source != "-":
                bytes_before += Path(source).stat().st_size
                self.bytes_read = bytes_before

    def location(self, index: int) -> str:
        """Return the file and line of a text by its number from 0, reading the file again."""
        position = bisect_right(self._starts, index) - 1
        source, number = self.sources[position], index - self._starts[position]
        if source == "-" or not Path(source).is_file():
            return f"{source_name(source)}, line {number + 1}"
        if source.endswith(".parquet"):
            return next(itertools.islice(self._parquet(source), number, None))[0]
        with open_bytes(Path(source)) as file:
            cells = self._cells(self._lines(file, source), source)
            return f"{source}, line {number + 1}" if cells is None else next(itertools.islice(cells, number, None))[0]

    def _texts(self, source: str) -> Iterator[str]:
        if source.endswith(".parquet"):
            yield from _first_values(self._parquet(source))
        else:
            with open_source(source) as file:
                yield from self._read(self._lines(file, source_name(source)), source)

    def _read(self, lines: Iterator[str], source: str) -> Iterator[str]:
        cells = self._cells(lines, source)
        return map(strip_newline, lines) if cells is None else _first_values(cells)

    def _cells(self, lines: Iterator[str], source: str) -> Iterator[Cells] | None:
        """Return the rows of a table with their lines; None for lines of text."""
        kind = _kind(source)
        if kind == ".jsonl":
            return json_rows(lines, source, [Column(self.column or DEFAULT_COLUMN)], numbers=False)
        if kind in (".csv", ".tsv") and self.column is not None:
            column = Column(int(self.column) if self.column.isdecimal() else self.column)
            return separated_rows(lines, source, [column], commas=kind == ".csv")
        return None

    def _check(self, source: str) -> None:
        if source != "-":
            check_file(Path(source))
        kind = _kind(source)
        if kind == ".parquet":
            check_parquet(source, [Column(self.column or DEFAULT_COLUMN)], numbers=False)
        elif kind not in (".jsonl", ".csv", ".tsv") and self.column is not None:
            raise ValueError(f"{source} has no columns; --column is for .jsonl, .parquet, .csv and .tsv files")

    def _lines(self, file: Iterable[bytes], name: str) -> Iterator[str]:
        compressed = isinstance(file, GzipFile)  # its bytes are not those of the file

        def count(size: int) -> None:
            self.bytes_read += 0 if compressed else size

        return text_lines(file, name, errors=self.errors, advice=_ADVICE, on_bytes=count)

    def _parquet(self, source: str) -> Iterator[Cells]:
        start, size = self.bytes_read, Path(source).stat().st_size

        def count(share: float) -> None:
            self.bytes_read = start + int(share * size)

        columns = [Column(self.column or DEFAULT_COLUMN)]
        return parquet_rows(source, columns, numbers=False, errors=self.errors, advice=_ADVICE, on_progress=count)


@contextlib.contextmanager
def open_source(source: str) -> Iterator[Any]:
    """Open a text file for reading bytes; "-" is standard input.

    Args:
        source: the file.

    Raises:
        ValueError: the file does not exist, is a folder, or has another format.

    >>> from clearhead.data.corpus import open_source
    >>> with open_source("nowhere.txt"): pass
    Traceback (most recent call last):
    ValueError: no such file: nowhere.txt
    """
    if source == "-":
        yield _standard_input()
        return
    check_file(Path(source))
    with open_bytes(Path(source)) as file:
        yield file


def source_name(source: str) -> str:
    """Return the name of a source for messages."""
    return "standard input" if source == "-" else source


def _kind(source: str) -> str:
    return Path(source.removesuffix(".gz")).suffix


def _first_values(rows: Iterator[Cells]) -> Iterator[str]:
    for _, (text,) in rows:
        assert text is not None  # the column is not optional
        yield text


def _standard_input() -> Any:
    """Return a separate reader of standard input: a thread blocked in `sys.stdin` keeps Python from exiting."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; give a file")
    try:
        file = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    except (OSError, ValueError):  # not a file: it was replaced by an object
        return sys.stdin.buffer
    assert isinstance(file, io.BufferedReader)
    check_text_format(file.peek(), "standard input")
    return file
