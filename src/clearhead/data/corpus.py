"""Texts from files: lines of text, columns of tables; one after the other, never held whole."""

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
from clearhead.data.tables import Cells, Column, check_parquet, json_rows, parquet_rows, separated_rows

log = logging.getLogger(__name__)

DEFAULT_COLUMN = "text"
_ADVICE = "--errors replace goes on with a replacement character"


class Corpus:
    """The texts of one or several files, in order.

    The format follows the ending: .jsonl (the value under `column` of each line's object), .parquet (the column), .csv
    and .tsv where a column is given, and lines of text for everything else and for standard input; any of them but
    .parquet may be packed (.gz).

    Args:
        sources: files, or "-" for standard input.
        column: name of the column in .jsonl and .parquet files; "text" where None. In .csv and .tsv files a name in the
            first line, or a number from 0 where there is no such line; where None, they are lines of text.
        errors: what to do with bytes that are not UTF-8: "strict" stops, "replace" puts U+FFFD for them.

    Raises:
        ValueError: no such file, a folder, a Parquet file without the column or whose column is no text, a column for
            files that have none. While iterating: bytes that are not UTF-8, a line that is no JSON object or has no
            text under the column; the message names file and line.

    >>> from clearhead.data.corpus import Corpus
    >>> Corpus(["-"]).total_bytes is None
    True
    """

    def __init__(self, sources: Sequence[str | Path], *, column: str | None = None, errors: Errors = "strict") -> None:
        check_choice("errors", errors, get_args(Errors))
        self.sources = [str(source) for source in sources]
        self.column, self.errors = column, errors
        self.bytes_read = 0
        self._starts: list[int] = []  # number of the first text of each source that has been read
        for source in self.sources:
            self._check(source)

    @property
    def total_bytes(self) -> int | None:
        """The size of all files; None with standard input among them."""
        if "-" in self.sources:
            return None
        return sum(Path(source).stat().st_size for source in self.sources)

    @property
    def can_reread(self) -> bool:
        """Whether all sources are regular files: standard input and pipes can be read only once."""
        return all(source != "-" and Path(source).is_file() for source in self.sources)

    def describe(self) -> list[list[str | None]]:
        """Return each file with the SHA-256 of its content; None for a source that can be read only once."""
        return [[str(Path(source).resolve()), content_hash(Path(source))] for source in self.sources if source != "-"]

    def __iter__(self) -> Iterator[str]:
        """The texts; `read_bytes` says how far it has come, roughly."""
        self.bytes_read, self._starts = 0, []
        before = number = 0
        for source in self.sources:
            self._starts.append(number)
            for text in self._texts(source):
                yield text
                number += 1
            if number == self._starts[-1]:
                log.warning("%s contains no texts", source_name(source))
            if source != "-":
                before += Path(source).stat().st_size
                self.bytes_read = before

    def location(self, index: int) -> str:
        """Return the file and line of a text that has been read, by its number from 0; the file is read again."""
        place = bisect_right(self._starts, index) - 1
        source, number = self.sources[place], index - self._starts[place]
        if source == "-" or not Path(source).is_file():
            return f"{source_name(source)}, line {number + 1}"
        if source.endswith(".parquet"):
            return next(itertools.islice(self._parquet(source), number, None))[0]
        with open_bytes(Path(source)) as file:
            cells = self._cells(self._lines(file, source), source)
            return f"{source}, line {number + 1}" if cells is None else next(itertools.islice(cells, number, None))[0]

    def _texts(self, source: str) -> Iterator[str]:
        if source.endswith(".parquet"):
            yield from _only(self._parquet(source))
        else:
            with open_source(source) as file:
                yield from self._read(self._lines(file, source_name(source)), source)

    def _read(self, lines: Iterator[str], source: str) -> Iterator[str]:
        cells = self._cells(lines, source)
        return map(strip_newline, lines) if cells is None else _only(cells)

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
        unpacked = isinstance(file, GzipFile)  # its bytes do not tell how much of the file has been read

        def count(size: int) -> None:
            self.bytes_read += 0 if unpacked else size

        return text_lines(file, name, errors=self.errors, advice=_ADVICE, on_bytes=count)

    def _parquet(self, source: str) -> Iterator[Cells]:
        start, size = self.bytes_read, Path(source).stat().st_size

        def count(share: float) -> None:
            self.bytes_read = start + int(share * size)

        columns = [Column(self.column or DEFAULT_COLUMN)]
        return parquet_rows(source, columns, numbers=False, errors=self.errors, advice=_ADVICE, on_progress=count)


@contextlib.contextmanager
def open_source(source: str) -> Iterator[Any]:
    """Open a text file, or standard input for "-", for reading bytes.

    Raises:
        ValueError: no such file, a folder, or another format than text.

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
    """Return what messages call a source."""
    return "standard input" if source == "-" else source


def _kind(source: str) -> str:
    return Path(source.removesuffix(".gz")).suffix


def _only(rows: Iterator[Cells]) -> Iterator[str]:
    for _, (text,) in rows:
        assert text is not None  # the one column is not optional
        yield text


def _standard_input() -> Any:
    """Standard input as a reader of its own: a thread that waits in `sys.stdin` would keep Python from ending."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; give a file")
    try:
        file = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    except (OSError, ValueError):  # not a file: somebody put an object in its place
        return sys.stdin.buffer
    assert isinstance(file, io.BufferedReader)
    check_text_format(file.peek(), "standard input")
    return file
