"""Stream texts from files: lines of text or columns of tables."""

import contextlib
import io
import itertools
import logging
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from gzip import GzipFile
from pathlib import Path
from typing import Any, get_args

from clearhead.choices import check_choice
from clearhead.data.arrow import SUFFIXES as ARROW_SUFFIXES
from clearhead.data.arrow import arrow_rows, check_arrow
from clearhead.data.dataset_folders import data_files
from clearhead.data.file_formats import check_text_format, file_extension
from clearhead.data.lines import (
    Errors,
    check_file,
    check_not_json,
    content_hash,
    open_bytes,
    strip_newline,
    text_lines,
)
from clearhead.data.tables import Cells, Column, json_rows, missing_column, separated_rows, separator_hint, table_header
from clearhead.io.json import path_text
from clearhead.memory import LongTextError

log = logging.getLogger(__name__)

DEFAULT_COLUMN = "text"
_MAX_SHOWN = 500
"""Maximum number of characters of the columns in a message."""
_CONVERT, _REPLACE = "convert it, for example with iconv", "use --errors replace to insert replacement characters"


class Corpus:
    """Texts of one or several files, in order.

    The file extension determines the format. .jsonl: the value of `column` in the object on each line. .parquet,
    .arrow, .csv and .tsv: the column. All other files and standard input: lines of text. All text files may be gzipped
    (.gz). A folder that Hugging Face `datasets` wrote stands for its files, as in `data_files`.

    Args:
        sources: the files or folders; "-" is standard input.
        column: the name of the column; "text" if None. In .csv and .tsv files, a number from 0 is a column of a table
            without a header.
        errors: how to handle bytes that are not UTF-8: "strict" raises, "replace" inserts U+FFFD. None also raises,
            with a message for commands without --errors.
        keep: other columns, whose values `take_kept` returns.

    Raises:
        ValueError: a file does not exist or is a folder; a table has no such text column (the message lists its
            columns); a column is given for files without columns. While iterating: bytes are not UTF-8, a line is not
            a JSON object or has no text in the column; the message names file and line.

    >>> from clearhead.data.corpus import Corpus
    >>> Corpus(["-"]).total_bytes is None
    True
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        *,
        column: str | None = None,
        errors: Errors | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        check_choice("errors", errors or "strict", get_args(Errors))
        self.sources = [file for source in sources for file in _files(str(source))]
        self.column, self.errors, self.keep = column, errors or "strict", list(keep)
        self._advice = _REPLACE if errors else _CONVERT
        self._kept: deque[list[Any]] = deque()
        self.bytes_read = self.texts_read = 0
        self._starts: list[int] = []  # number of the first text of each source
        self._longest = (0, 0)  # length and number of the longest text so far
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
        return [
            [path_text(Path(source).resolve()), content_hash(Path(source))] for source in self.sources if source != "-"
        ]

    def __iter__(self) -> Iterator[str]:
        """Yield the texts; `bytes_read` and `texts_read` are the progress, the bytes approximately."""
        return self.read()

    def read(self, start: int = 0) -> Iterator[str]:
        """Yield the texts from number `start` on; progress as in `__iter__`."""
        self.bytes_read, self.texts_read, self._starts, self._longest = 0, start, [], (0, 0)
        self._kept.clear()
        bytes_before = number = 0
        for source in self.sources:
            self._starts.append(number)
            before = _version(source)
            for text in self._texts(source):
                if number >= start:
                    self.texts_read = number + 1
                    self._longest = max(self._longest, (len(text), number))
                    yield text
                else:
                    self._kept.clear()
                number += 1
            if number == self._starts[-1]:
                log.warning("%s contains no texts", source_name(source))
            if _version(source) != before:
                raise ValueError(f"{source} changed while it was read; start again when it is complete")
            if source != "-":
                bytes_before += Path(source).stat().st_size
                self.bytes_read = bytes_before

    def take_kept(self, count: int) -> list[dict[str, Any]]:
        """Return the values of the columns in `keep`, by name, for the next `count` texts that were read."""
        if not self.keep:
            return [{}] * count
        return [dict(zip(self.keep, self._kept.popleft(), strict=True)) for _ in range(count)]

    def location(self, index: int) -> str:
        """Return the file and line of a text by its number from 0, reading the file again."""
        position = bisect_right(self._starts, index) - 1
        source, number = self.sources[position], index - self._starts[position]
        if source == "-" or not Path(source).is_file():
            return f"{source_name(source)}, line {number + 1}"
        if source.endswith(ARROW_SUFFIXES):
            return next(itertools.islice(self._arrow(source), number, None))[0]
        with open_bytes(Path(source)) as file:
            cells = self._cells(self._lines(file, source), source)
            return f"{source}, line {number + 1}" if cells is None else next(itertools.islice(cells, number, None))[0]

    @contextlib.contextmanager
    def locate_long_text(self) -> Iterator[None]:
        """Add the file and line of the longest text so far to a `LongTextError` that the block raises."""
        try:
            yield
        except LongTextError as error:
            raise LongTextError(f"{self.location(self._longest[1])}: {error}") from None

    def _texts(self, source: str) -> Iterator[str]:
        if source.endswith(ARROW_SUFFIXES):
            yield from self._first_values(self._arrow(source))
        else:
            with open_source(source) as file:
                yield from self._read(self._lines(file, source_name(source)), source)

    def _read(self, lines: Iterator[str], source: str) -> Iterator[str]:
        cells = self._cells(lines, source)
        return map(strip_newline, lines) if cells is None else self._first_values(cells)

    def _first_values(self, rows: Iterator[Cells]) -> Iterator[str]:
        for _, (text, *kept) in rows:
            if kept:
                self._kept.append(kept)
            yield text

    def _cells(self, lines: Iterator[str], source: str) -> Iterator[Cells] | None:
        """Return the rows of a table with their lines; None for lines of text."""
        kind = file_extension(source)
        if kind == ".jsonl":
            return json_rows(lines, source, self._columns(), allow_numbers=False)
        if kind in (".csv", ".tsv"):
            return separated_rows(lines, source, self._columns(numbered=True), commas=kind == ".csv")
        return None

    def _columns(self, *, numbered: bool = False) -> list[Column]:
        name = self.column or DEFAULT_COLUMN
        text = Column(int(name) if numbered and name.isdecimal() else name)
        return [text, *(Column(other, any_type=True) for other in self.keep)]

    def _check(self, source: str) -> None:
        if source != "-":
            check_not_json(check_file(Path(source)))
        kind = file_extension(source)
        if kind in ARROW_SUFFIXES:
            check_arrow(source, self._columns(), allow_numbers=False)
        elif kind in (".csv", ".tsv"):
            self._check_header(source, commas=kind == ".csv")
        elif not is_table(source) and (self.column is not None or self.keep):
            option = "--keep" if self.column is None else "--column"
            raise ValueError(f"{source} has no columns; {option} is for .jsonl, .parquet, .arrow, .csv and .tsv files")

    def _check_header(self, source: str, *, commas: bool) -> None:
        if self.column is not None and self.column.isdecimal():
            if self.keep:
                raise ValueError(f"--keep needs the names of columns, but --column {self.column} is for no header")
            return
        with open_bytes(Path(source)) as file:
            header = table_header(self._lines(file, source), source, commas=commas)
        if self.column is None and header and DEFAULT_COLUMN not in header and not separator_hint(header):
            raise ValueError(
                f"{source} has the columns {', '.join(map(repr, header)):.{_MAX_SHOWN}}. Choose the texts with "
                "--column NAME, or with --column NUMBER (from 0) if the first row is not a header"
            )
        for column in self._columns() if header else ():
            if column.name not in header:
                raise ValueError(f"{source}: {missing_column(column.name, header)}")

    def _lines(self, file: Iterable[bytes], name: str) -> Iterator[str]:
        def count(size: int) -> None:
            # the bytes of compressed data are not those of the file
            self.bytes_read += 0 if isinstance(file, GzipFile) else size

        return text_lines(file, name, errors=self.errors, advice=self._advice, on_bytes=count)

    def _arrow(self, source: str) -> Iterator[Cells]:
        start, size = self.bytes_read, Path(source).stat().st_size

        def count(share: float) -> None:
            self.bytes_read = start + int(share * size)

        return arrow_rows(
            source, self._columns(), allow_numbers=False, errors=self.errors, advice=self._advice, on_progress=count
        )


def _version(source: str) -> tuple[int, int] | None:
    """Return the size and time of a regular file, to see whether it changes; None for a pipe or a missing file."""
    path = Path(source)
    return (path.stat().st_size, path.stat().st_mtime_ns) if source != "-" and path.is_file() else None


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


def check_keep(keep: Sequence[str], columns: Sequence[str]) -> None:
    """Check the names of columns that are copied to an output.

    Args:
        keep: the names.
        columns: names of the output's own columns.

    Raises:
        ValueError: a name is empty, repeated or in `columns`.

    >>> from clearhead.data.corpus import check_keep
    >>> check_keep(["id", "title"], columns=["text"])
    """
    for name in keep:
        if name in columns:
            raise ValueError(f"--keep: the output already has a column {name!r}")
        if not name or list(keep).count(name) > 1:
            raise ValueError(f"--keep: expected names of columns, separated by commas; got {','.join(keep)!r}")


def source_name(source: str) -> str:
    """Return the name of a source for messages."""
    return "standard input" if source == "-" else source


def is_table(source: str) -> bool:
    """Return whether a file, or the files of a folder, have columns."""
    return all(file_extension(file) in (".jsonl", ".csv", ".tsv", *ARROW_SUFFIXES) for file in _files(source))


def _files(source: str) -> list[str]:
    return [source] if source == "-" else [str(path) for path in data_files(Path(source))]


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
