"""Rows with named fields from files: line-parallel texts or columns of tables; streamed, never held whole."""

import contextlib
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from clearhead.data.tables import Cells, Column, check_parquet, json_rows, missing_column, parquet_rows, separated_rows

Paths = str | Path | Sequence[str | Path]
_ADVICE = "give the file's encoding (old files are often latin-1)"
_SQUAD = ("question", "context", "answer", "answer_start")


@dataclass(frozen=True)
class Row:
    """A row of the data.

    Args:
        values: its fields; an optional field that the row does not have is not among them.
        where: where it stands, for messages: "train.en, line 5".
    """

    values: Mapping[str, str]
    location: str


class Records:
    """The rows of one or several files, in order, again and again.

    - A file for each field (a mapping): a text a line, line n of one beside line n of the others.
    - One file or several with all fields; the ending says the format. .tsv: columns parted by tabs, nothing is quoted.
      .csv: fields may be quoted. .jsonl: an object a line. .parquet: a table. .json: SQuAD's layout, with the columns
      question, context, answer and answer_start (of the first answer; "" and "-1" where there is none). Any other
      ending: one field, a text a line.

    Files may be packed (.gz), but for .parquet.

    Args:
        source: the files.
        fields: what each row has.
        columns: the column of each field. In .csv and .tsv files names, which the first line holds then, or numbers
            from 0, and the first line is a row like the others; without `columns` the fields are the columns, in their
            order, of files without such a line. Elsewhere names; a field that is left out is named like its column.
        encoding: of texts and of .csv, .tsv and .jsonl files.
        optional: fields, of those or others, that a file or a row may lack.

    Raises:
        ValueError: no such file, a folder, an empty file, a field or column that is not there, an encoding that is
            unknown. While iterating: parallel files of different length (before the first row comes), a row with too
            few columns, a value that is missing, bytes that do not fit the encoding; the message names file and line.

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
                raise ValueError("files that hold a field each have no columns; leave `columns` out")
            self._files = {field: _paths(files) for field, files in source.items()}
            self._check_parallel()
        else:
            self._files = {"": _paths(source)}
            self._check_columns()
        for path in self._all_files():
            self._check(path)

    def describe(self) -> list[list[str | None]]:
        """Return each file with the SHA-256 of its content and how it is read."""
        reading = {"fields": self.fields, "columns": self.columns, "encoding": self.encoding}
        files = [(path.resolve(), field) for field in sorted(self._files) for path in self._files[field]]
        return [[str(path), content_hash(path), json.dumps({"field": field, **reading})] for path, field in files]

    def __iter__(self) -> Iterator[Row]:
        """The rows."""
        if self._parallel:
            fields = [field for field in self.fields if field in self._files]
            groups = list(zip(*(self._files[field] for field in fields), strict=True))
            for group in groups:
                self._check_lengths(group)
            for group in groups:
                yield from self._beside(fields, group)
            return
        for path in self._files[""]:
            some = False
            for where, values in self._table(path):
                some = True
                found = zip(self.fields, values, strict=True)
                yield Row({field: value for field, value in found if value is not None}, where)
            if not some:
                raise ValueError(f"{path} holds no rows; leave it out")

    def _beside(self, fields: Sequence[str], group: Sequence[Path]) -> Iterator[Row]:
        with contextlib.ExitStack() as stack:
            texts = [self._lines(stack.enter_context(open_bytes(path)), path) for path in group]
            for number, values in enumerate(zip(*texts, strict=True), start=1):
                row = dict(zip(fields, map(strip_newline, values), strict=True))
                yield Row(row, f"{group[0]}, line {number}")

    def _check_lengths(self, group: Sequence[Path]) -> None:
        """A first pass that counts lines: else a file that is too short would be found after all the work."""
        counts = []
        for path in group:
            with open_bytes(path) as file:
                counts.append(sum(1 for _ in byte_lines(file, self.encoding)))
        short, long = (counts.index(bound) for bound in (min(counts), max(counts)))
        if counts[short] == 0:
            raise ValueError(f"{group[short]} holds no rows; leave it out")
        if counts[short] < counts[long]:
            with open_bytes(group[long]) as file:
                lines = self._lines(file, group[long])
                extra = strip_newline(next(line for number, line in enumerate(lines) if number == counts[short]))
            raise ValueError(
                f"{group[short]} ends after line {counts[short]}; {group[long]} goes on with line {counts[short] + 1}: "
                f"{extra!r:.80} (it has {counts[long]}); a line of one belongs to that line of the other"
            )

    def _table(self, path: Path) -> Iterator[Cells]:
        kind = _kind(path)
        if kind == ".parquet":
            yield from parquet_rows(str(path), self._wanted(), numbers=True)
        elif kind == ".json":
            yield from self._squad(path)
        else:
            with open_bytes(path) as file:
                yield from self._read(self._lines(file, path), path)

    def _read(self, lines: Iterator[str], path: Path) -> Iterator[Cells]:
        kind = _kind(path)
        if kind == ".jsonl":
            return json_rows(lines, str(path), self._wanted(), numbers=True)
        if kind in (".csv", ".tsv"):
            wanted = self._wanted() if self.columns else [*map(self._column, self.fields, range(len(self.fields)))]
            rows = separated_rows(lines, str(path), wanted, commas=kind == ".csv", exact=not self.columns)
            return rows if self.columns else self._without_header(rows)
        return self._plain(lines, path)

    def _plain(self, lines: Iterator[str], path: Path) -> Iterator[Cells]:
        (only,) = self._needed() or self.fields
        for number, line in enumerate(lines, start=1):
            yield f"{path}, line {number}", [strip_newline(line) if field == only else None for field in self.fields]

    def _without_header(self, rows: Iterator[Cells]) -> Iterator[Cells]:
        for number, (where, values) in enumerate(rows):
            if number == 0 and any(value == field for value, field in zip(values, self.fields, strict=True)):
                raise ValueError(
                    f"{where} holds a field's name; if it names the columns, give their names as `columns`, and if it "
                    "does not, give their numbers"
                )
            yield where, values

    def _squad(self, path: Path) -> Iterator[Cells]:
        for asked in iter_questions(read_squad_json(path), path):
            where = f"{path}, {asked.location}"
            yield where, [_squad_value(asked, column, where) for column in self._wanted()]

    def _lines(self, file: Iterable[bytes], path: Path) -> Iterator[str]:
        return text_lines(file, str(path), encoding=self.encoding, advice=_ADVICE)

    def _wanted(self) -> list[Column]:
        return [self._column(field, self.columns.get(field, field)) for field in self.fields]

    def _column(self, field: str, name: str | int) -> Column:
        return Column(name, field in self.optional)

    def _needed(self) -> list[str]:
        return [field for field in self.fields if field not in self.optional]

    def _all_files(self) -> Iterator[Path]:
        return (path for paths in self._files.values() for path in paths)

    def _check_parallel(self) -> None:
        for field in self._files:
            if field not in self.fields:
                raise ValueError(f"no field {_unknown(field, self.fields)}")
        for field in self._needed():
            if field not in self._files:
                raise ValueError(f"no file for the field {field!r}; there are files for {', '.join(self._files)}")
        counts = {field: len(paths) for field, paths in self._files.items()}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{field} has {count}" for field, count in counts.items())
            raise ValueError(f"each field must have as many files as the others; {said}")
        for path in self._all_files():
            if _kind(path) in (".csv", ".tsv", ".json", ".jsonl", ".parquet"):
                raise ValueError(f"{path} is a table; a file for a field holds a text a line; give a table by itself")

    def _check_columns(self) -> None:
        for field in self.columns:
            if field not in self.fields:
                raise ValueError(f"columns: no field {_unknown(field, self.fields)}")
        numbers = [column for column in self.columns.values() if isinstance(column, int)]
        if not numbers:
            return
        if len(numbers) < len(self.columns):
            raise ValueError(f"columns are all names or all numbers; got {self.columns}")
        if min(numbers) < 0:
            raise ValueError(f"columns are counted from 0; got {min(numbers)}")
        for field in self._needed():
            if field not in self.columns:
                raise ValueError(f"columns gives no number for the field {field!r}")
        # a file without names has no more fields than were numbered
        self.fields = tuple(field for field in self.fields if field in self.columns)

    def _check(self, path: Path) -> None:
        check_file(path)
        if not path.is_file():
            raise ValueError(f"{path} is no regular file; the rows are read more than once")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; leave it out")
        if self._parallel:
            return
        kind = _kind(path)
        numbered = any(isinstance(column, int) for column in self.columns.values())
        if kind in (".jsonl", ".parquet", ".json") and numbered:
            raise ValueError(f"the columns of {path} have names; got {self.columns}")
        if kind == ".parquet":
            check_parquet(str(path), self._wanted(), numbers=True)
        elif kind == ".json":
            for column in self._wanted():
                if column.name not in _SQUAD and not column.optional:
                    raise ValueError(f"{path} is of SQuAD's layout: {missing_column(column.name, _SQUAD)}")
        elif kind not in (".jsonl", ".csv", ".tsv"):
            self._check_plain(path)

    def _check_plain(self, path: Path) -> None:
        if self.columns:
            raise ValueError(f"{path} has no columns; .tsv, .csv, .jsonl and .parquet files have")
        wanted = self._needed() or self.fields
        if len(wanted) != 1:
            raise ValueError(
                f"{path} has a text a line, and {len(wanted)} fields are wanted: {', '.join(wanted)}; "
                "give a file for each, or a .tsv, .csv, .jsonl or .parquet file"
            )


def _squad_value(asked: SquadQuestion, column: Column, where: str) -> str | None:
    first = asked.answers[0] if asked.answers else None
    if column.name == "answer_start":
        if first is None:
            return "-1"
        if first.start is None and not column.optional:
            raise ValueError(f'{where}.answers[0] has no "answer_start" that is a number')
        return None if first.start is None else str(first.start)
    values = {"question": asked.question, "context": asked.context, "answer": first.text if first else ""}
    return values.get(str(column.name))


def _paths(files: Paths) -> list[Path]:
    paths = [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
    if not paths:
        raise ValueError("there are no files; give one at least")
    return paths


def _kind(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix


def _unknown(field: str, fields: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(field, fields, n=1)
    return f"{field!r}; there are: {', '.join(fields)}" + (f"; is {nearest[0]!r} meant?" if nearest else "")
