"""Stream rows with named fields from files: parallel lines of text or columns of tables."""

import contextlib
import glob
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clearhead.choices import did_you_mean
from clearhead.data.arrow import SUFFIXES as ARROW_SUFFIXES
from clearhead.data.arrow import arrow_rows, check_arrow
from clearhead.data.dataset_folders import data_files
from clearhead.data.file_formats import file_extension
from clearhead.data.lines import (
    byte_lines,
    check_encoding,
    check_file,
    content_hash,
    open_bytes,
    strip_newline,
    text_lines,
)
from clearhead.data.squad import SquadQuestion, iter_questions, read_squad_json
from clearhead.data.tables import Cells, Column, json_rows, missing_column, separated_rows, table_header
from clearhead.io.json import path_text

Paths = str | Path | Sequence[str | Path]
_ADVICE = "set the encoding of the file (old files are often latin-1)"
_SQUAD = ("question", "context", "answer", "answer_start")


@dataclass(frozen=True)
class Row:
    """One row of a data set.

    Args:
        values: its fields, without optional fields that the row lacks.
        location: its file and line, for messages, such as "train.en, line 5".
    """

    values: Mapping[str, str]
    location: str


def matching_files(path: str | Path) -> list[Path]:
    """Return the files that match a pattern with `*`, `?` or `[...]`, sorted; a path without a pattern is returned.

    Raises:
        ValueError: no file matches.

    >>> from clearhead.data.records import matching_files
    >>> matching_files("train.tsv")
    [PosixPath('train.tsv')]
    """
    path = Path(path).expanduser()
    if not glob.has_magic(str(path)) or path.exists():
        return [path]
    matches = sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not matches:
        raise ValueError(f"no file matches {path}")
    return matches


class Records:
    """Rows of one or several files, in order; they can be iterated many times.

    - One file for each field (a mapping): each line is a text, and line n of all files is a row.
    - One or several files with all fields; the file extension determines the format. .tsv: columns separated by tabs,
      without quoting. .csv: fields may be quoted. .jsonl: one object a line. .parquet, .arrow: a table. .json: SQuAD
      format, with the columns question, context, answer and answer_start (of the first answer; "" and "-1" without
      one). Other extensions: one field, one text per line.
    - A folder that Hugging Face `datasets` wrote, as in `data_files`.
    - A pattern, such as "train-*.jsonl": all matching files, sorted by name. `**` also matches subfolders.

    All text files may be gzipped (.gz).

    Args:
        source: the files.
        fields: the fields of each row.
        columns: the column of each field; its default has the field's name. In .csv and .tsv files either names from
            the first line, or numbers from 0, and the first line is a normal row. Without `columns`, the first line is
            a header if it contains the names of all required fields; else the fields are the columns in order. In
            .parquet and .arrow files, a dot selects a field of a column of structs: "translation.en".
        encoding: the encoding of texts and of .csv, .tsv and .jsonl files.
        optional: fields, included in `fields` or additional, that a file or a row may lack.

    Raises:
        ValueError: a file does not exist, is a folder or is empty; a field or column is missing; the encoding is
            unknown. While iterating: parallel files have different lengths (raised before the first row), a row has too
            few columns, a value is missing, bytes are invalid in the encoding; the message names file and line.

    >>> import tempfile, pathlib; from clearhead.data.records import Records
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.tsv"; _ = path.write_text("good\\t1\\n")
    >>> [row.values for row in Records(path, fields=["text", "label"])]
    [{'text': 'good', 'label': '1'}]
    """

    def __init__(
        self,
        source: Paths | Mapping[str, Paths],
        *,
        fields: Sequence[str],
        columns: Mapping[str, str | int] | None = None,
        encoding: str = "utf-8",
        optional: Sequence[str] = (),
    ) -> None:
        self.fields = tuple(dict.fromkeys([*fields, *optional]))
        self.optional = frozenset(optional)
        self.columns = dict(columns or {})
        self.encoding = check_encoding(encoding)
        self._parallel = isinstance(source, Mapping)
        if isinstance(source, Mapping):
            if columns:
                raise ValueError("files with one field each have no columns; leave `columns` out")
            self._files = {field: _paths(files) for field, files in source.items()}
            self._check_parallel()
        else:
            self._files = {"": [file for path in _paths(source) for file in data_files(path)]}
            self._check_columns()
        for path in self._all_files():
            self._check(path)

    def describe(self) -> list[list[str | None]]:
        """Return each file with the SHA-256 of its contents and how it is read."""
        reading = {"fields": self.fields, "columns": self.columns, "encoding": self.encoding}
        files = [(path.resolve(), field) for field in sorted(self._files) for path in self._files[field]]
        return [[path_text(path), content_hash(path), json.dumps({"field": field, **reading})] for path, field in files]

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows."""
        if self._parallel:
            fields = [field for field in self.fields if field in self._files]
            groups = list(zip(*(self._files[field] for field in fields), strict=True))
            for group in groups:
                self._check_lengths(group)
            for group in groups:
                yield from self._parallel_rows(fields, group)
            return
        for path in self._files[""]:
            has_rows = False
            for where, values in self._table(path):
                has_rows = True
                pairs = zip(self.fields, values, strict=True)
                yield Row({field: value for field, value in pairs if value is not None}, where)
            if not has_rows:
                raise ValueError(f"{path} has no rows; leave it out")

    def _parallel_rows(self, fields: Sequence[str], group: Sequence[Path]) -> Iterator[Row]:
        with contextlib.ExitStack() as stack:
            texts = [self._lines(stack.enter_context(open_bytes(path)), path) for path in group]
            for number, values in enumerate(zip(*texts, strict=True), start=1):
                row = dict(zip(fields, map(strip_newline, values), strict=True))
                yield Row(row, f"{group[0]}, line {number}")

    def _check_lengths(self, group: Sequence[Path]) -> None:
        """Count the lines of parallel files before reading, so that a file that is too short is found early."""
        counts = []
        for path in group:
            with open_bytes(path) as file:
                counts.append(sum(1 for _ in byte_lines(file, self.encoding)))
        short, long = (counts.index(bound) for bound in (min(counts), max(counts)))
        if counts[short] == 0:
            raise ValueError(f"{group[short]} has no rows; leave it out")
        if counts[short] < counts[long]:
            with open_bytes(group[long]) as file:
                lines = self._lines(file, group[long])
                extra = strip_newline(next(line for number, line in enumerate(lines) if number == counts[short]))
            raise ValueError(
                f"{group[short]} has {counts[short]} lines, but {group[long]} has {counts[long]}: "
                f"its line {counts[short] + 1} is {extra!r:.80}. Parallel files must have equally many lines"
            )

    def _table(self, path: Path) -> Iterator[Cells]:
        kind = file_extension(path)
        if kind in ARROW_SUFFIXES:
            yield from arrow_rows(str(path), self._selected_columns(), allow_numbers=True)
        elif kind == ".json":
            yield from self._squad(path)
        else:
            with open_bytes(path) as file:
                yield from self._read(self._lines(file, path), path)

    def _read(self, lines: Iterator[str], path: Path) -> Iterator[Cells]:
        kind = file_extension(path)
        if kind == ".jsonl":
            return json_rows(lines, str(path), self._selected_columns(), allow_numbers=True)
        if kind in (".csv", ".tsv"):
            return self._separated(lines, path, commas=kind == ".csv")
        return self._plain(lines, path)

    def _separated(self, lines: Iterator[str], path: Path, *, commas: bool) -> Iterator[Cells]:
        if not self.columns:
            lines, again = itertools.tee(lines)
            header = table_header(again, str(path), commas=commas)
            del again  # otherwise all lines would be kept for it
            if not set(self._required()) <= set(header):
                selected = [*map(self._column, self.fields, range(len(self.fields)))]
                return self._without_header(separated_rows(lines, str(path), selected, commas=commas, exact=True))
        return separated_rows(lines, str(path), self._selected_columns(), commas=commas)

    def _plain(self, lines: Iterator[str], path: Path) -> Iterator[Cells]:
        (text_field,) = self._required() or self.fields
        for number, line in enumerate(lines, start=1):
            yield (
                f"{path}, line {number}",
                [strip_newline(line) if field == text_field else None for field in self.fields],
            )

    def _without_header(self, rows: Iterator[Cells]) -> Iterator[Cells]:
        for number, (where, values) in enumerate(rows):
            if number == 0 and any(value == field for value, field in zip(values, self.fields, strict=True)):
                missing = ", ".join(field for field in self._required() if field not in values)
                raise ValueError(
                    f"{where} looks like a header, but it has no column {missing}. Choose the column of each field by "
                    "name, or by number from 0 if the line is not a header"
                )
            yield where, values

    def _squad(self, path: Path) -> Iterator[Cells]:
        for question in iter_questions(read_squad_json(path), path):
            where = f"{path}, {question.location}"
            yield where, [_squad_value(question, column, where) for column in self._selected_columns()]

    def _lines(self, file: Iterable[bytes], path: Path) -> Iterator[str]:
        return text_lines(file, str(path), encoding=self.encoding, advice=_ADVICE)

    def _selected_columns(self) -> list[Column]:
        return [self._column(field, self.columns.get(field, field)) for field in self.fields]

    def _column(self, field: str, name: str | int) -> Column:
        return Column(name, field in self.optional)

    def _required(self) -> list[str]:
        return [field for field in self.fields if field not in self.optional]

    def _all_files(self) -> Iterator[Path]:
        return (path for paths in self._files.values() for path in paths)

    def _check_parallel(self) -> None:
        for field in self._files:
            if field not in self.fields:
                raise ValueError(f"no field {_unknown(field, self.fields)}")
        for field in self._required():
            if field not in self._files:
                raise ValueError(f"no file for the field {field!r}; got files for {', '.join(self._files)}")
        counts = {field: len(paths) for field, paths in self._files.items()}
        if len(set(counts.values())) > 1:
            numbers = ", ".join(f"{field} has {count}" for field, count in counts.items())
            raise ValueError(f"all fields must have equally many files; {numbers}")
        for path in self._all_files():
            if file_extension(path) in (".csv", ".tsv", ".json", ".jsonl", *ARROW_SUFFIXES):
                raise ValueError(f"{path} is a table, but expected one text per line. Pass a table alone")

    def _check_columns(self) -> None:
        for field in self.columns:
            if field not in self.fields:
                raise ValueError(f"columns: no field {_unknown(field, self.fields)}")
        numbers = [column for column in self.columns.values() if isinstance(column, int)]
        if not numbers:
            return
        if len(numbers) < len(self.columns):
            raise ValueError(f"columns must be all names or all numbers; got {self.columns}")
        if min(numbers) < 0:
            raise ValueError(f"columns count from 0; got {min(numbers)}")
        for field in self._required():
            if field not in self.columns:
                raise ValueError(f"columns has no number for the field {field!r}")
        # without a header, the file has only the numbered fields
        self.fields = tuple(field for field in self.fields if field in self.columns)

    def _check(self, path: Path) -> None:
        check_file(path)
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file; the rows are read more than once")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; leave it out")
        if self._parallel:
            return
        kind = file_extension(path)
        numbered = any(isinstance(column, int) for column in self.columns.values())
        if kind in (".jsonl", ".json", *ARROW_SUFFIXES) and numbered:
            raise ValueError(f"{path} has named columns; got the numbers {self.columns}")
        if kind in ARROW_SUFFIXES:
            check_arrow(str(path), self._selected_columns(), allow_numbers=True)
        elif kind == ".json":
            for column in self._selected_columns():
                if column.name not in _SQUAD and not column.optional:
                    raise ValueError(f"{path} has the SQuAD format: {missing_column(column.name, _SQUAD)}")
        elif kind not in (".jsonl", ".csv", ".tsv"):
            self._check_plain(path)

    def _check_plain(self, path: Path) -> None:
        if self.columns:
            raise ValueError(f"{path} has no columns. Use a .tsv, .csv, .jsonl, .parquet or .arrow file")
        required = self._required() or self.fields
        if len(required) != 1:
            raise ValueError(
                f"{path} has one text per line, but expected {len(required)} fields: {', '.join(required)}. "
                "Use a file for each, or a .tsv, .csv, .jsonl or .parquet file"
            )


def _squad_value(question: SquadQuestion, column: Column, where: str) -> str | None:
    first = question.answers[0] if question.answers else None
    if column.name == "answer_start":
        if first is None:
            return "-1"
        if first.start is None and not column.optional:
            raise ValueError(f'{where}.answers[0] has no "answer_start" that is a number')
        return None if first.start is None else str(first.start)
    values = {"question": question.question, "context": question.context, "answer": first.text if first else ""}
    return values.get(str(column.name))


def _paths(files: Paths) -> list[Path]:
    paths = [files] if isinstance(files, str | Path) else files
    if not paths:
        raise ValueError("there are no files; expected at least one")
    return [match for path in paths for match in matching_files(path)]


def _unknown(field: str, fields: Sequence[str]) -> str:
    return f"{field!r}" + (did_you_mean(field, fields) or f"; the fields are: {', '.join(fields)}")
