"""Read columns of JSON lines, CSV and TSV files row by row."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.choices import did_you_mean
from clearhead.data.lines import strip_newline
from clearhead.io.json import json_error, unique_keys


@dataclass(frozen=True)
class Column:
    """Column to read from a table.

    Args:
        name: its name, or its number from 0 if the table has no header.
        optional: whether a row may lack it; its value is then None.
        any_type: whether it may have other values than texts, as in `check_value`.
    """

    name: str | int
    optional: bool = False
    any_type: bool = False


_MAX_SHOWN = 500
"""Maximum number of characters of the columns in a message."""

Cells = tuple[str, list[Any]]
"""File and line of a row, and the values of the requested columns: texts, None or, for `any_type`, other values."""


def json_rows(lines: Iterable[str], source: str, columns: Sequence[Column], *, allow_numbers: bool) -> Iterator[Cells]:
    """Yield the rows of JSON lines; blank lines are skipped.

    Args:
        lines: the lines.
        source: the file name, for messages.
        columns: the keys to read from each object.
        allow_numbers: whether numbers are accepted too, as text.

    Raises:
        ValueError: a line is not a JSON object or repeats a key, or the value of a column is missing or not a text; the
            message names the line.

    >>> from clearhead.data.tables import Column, json_rows
    >>> list(json_rows(['{"text": "Hi", "score": 4.50}'], "a.jsonl", [Column("score")], allow_numbers=True))
    [('a.jsonl, line 1', ['4.50'])]
    """
    numbers: dict[str, Any] = {"parse_int": str, "parse_float": str} if allow_numbers else {}
    decode = json.JSONDecoder(object_pairs_hook=unique_keys, **numbers).decode
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        if not line.strip():
            continue
        try:
            row = decode(strip_newline(line))
        except (ValueError, RecursionError) as error:  # invalid text, endless digits or nesting
            raise ValueError(f"{where}: not JSON: {json_error(error, line)}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a JSON {type(row).__name__}; expected an object")
        yield where, [_json_value(row, column, where, allow_numbers) for column in columns]


def _json_value(row: dict[str, object], column: Column, where: str, allow_numbers: bool) -> object:
    if column.name not in row and not column.optional:
        raise ValueError(f"{where}: {missing_column(column.name, list(row))}")
    return check_value(row.get(str(column.name)), column, where, allow_numbers)


def separated_rows(
    lines: Iterable[str], source: str, columns: Sequence[Column], *, commas: bool, exact: bool = False
) -> Iterator[Cells]:
    """Yield the rows of comma-separated or tab-separated values; empty lines are skipped.

    Comma-separated fields may be quoted; a quoted field may contain commas, doubled quotes and line breaks.
    Tab-separated fields are never quoted. To find columns by name, the first row is read as the header.

    Args:
        lines: the lines, with line endings.
        source: the file name, for messages.
        columns: the columns to read, all by name or all by number.
        commas: whether fields are separated by commas, not tabs.
        exact: whether rows with other columns are refused.

    Raises:
        ValueError: a column is missing in the header or repeated, a row has too few or too many columns, or a quote is
            not closed. The message names file and line.

    >>> from clearhead.data.tables import Column, separated_rows
    >>> list(separated_rows(["a,b\\n", '1,"x,\\n', 'y"\\n'], "a.csv", [Column("b")], commas=True))
    [('a.csv, line 2', ['x,\\ny'])]
    """
    rows = _comma_rows(lines, source) if commas else _tab_rows(lines)
    named = any(isinstance(column.name, str) for column in columns)
    header = next(rows, (0, []))[1] if named else []
    if named and not header:
        return
    indices = [_find_column(header, column, source) if named else int(column.name) for column in columns]
    needed = max((index for index, column in zip(indices, columns, strict=True) if not column.optional), default=0) + 1
    most = len(header) if named else len(columns) if exact else None
    for number, row in rows:
        where = f"{source}, line {number}"
        if len(row) < needed or (most is not None and len(row) > most):
            expected = _expected_columns(needed, most, header)
            raise ValueError(f"{where} has {len(row)} column{'s' if len(row) > 1 else ''}; {expected}")
        yield where, [row[index] if 0 <= index < len(row) else None for index in indices]


def table_header(lines: Iterable[str], source: str, *, commas: bool) -> list[str]:
    """Return the fields of the first row; arguments as in `separated_rows`."""
    return next(_comma_rows(lines, source) if commas else _tab_rows(lines), (0, list[str]()))[1]


def _tab_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        if text := strip_newline(line):
            yield number, text.split("\t")


def _comma_rows(lines: Iterable[str], source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the line where each starts, which helps to find a quote that is never closed."""
    reader = csv.reader(lines, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            fix = (
                "raise the limit with csv.field_size_limit, or use .jsonl or .parquet"
                if "field limit" in str(error)
                else "quote fields that contain a quote, a comma or a line break, and double quotes inside them"
            )
            raise ValueError(f"{source}: the row that starts on line {start} cannot be read: {error}; {fix}") from None
        if row is None:
            return
        if row:
            yield start, row


def raise_field_limit() -> None:
    """Accept CSV fields of any length in this process.

    Python's limit of 131,072 characters is a setting of the whole process, so the library does not change it. The
    command line and its workers call this once.
    """
    csv.field_size_limit(2**31 - 1)


def _find_column(header: list[str], column: Column, source: str) -> int:
    count = header.count(str(column.name))
    if count == 1:
        return header.index(str(column.name))
    if count > 1:
        raise ValueError(f"{source} has {count} columns named {column.name!r}; expected one")
    if column.optional:
        return -1
    missing = f"{source}: {missing_column(column.name, header)}"
    if separator_hint(header):
        raise ValueError(missing)
    raise ValueError(
        f"{missing} (the names in its first line). In a file without names, choose columns by number, from 0"
    )


def _expected_columns(needed: int, most: int | None, header: list[str]) -> str:
    if header:
        return f"its header has {len(header)}: {', '.join(header)}"
    if most is None:
        return f"expected column {needed - 1}, counted from 0"
    count = str(most) if needed == most else f"{needed} to {most}"
    return f"expected {count}, or the names or numbers of the columns"


def missing_column(name: str | int, names: Sequence[str]) -> str:
    """Return the message for a missing column: it lists the columns and suggests a similar name.

    >>> from clearhead.data.tables import missing_column
    >>> missing_column("txt", ["text", "label"])
    "no column 'txt'; it has: text, label; did you mean 'text'?"
    >>> missing_column("text", ["id\\ttext"])
    "no column 'text': the columns seem to be separated by tabs; rename the file to end in .tsv"
    """
    if separator := separator_hint(names):
        return f"no column {name!r}: {separator}"
    return f"no column {name!r}; it has: {', '.join(names):.{_MAX_SHOWN}}{did_you_mean(name, names)}"


def separator_hint(names: Sequence[str]) -> str:
    """Return how to read a header that has one column because it has another separator; "" for other headers.

    >>> from clearhead.data.tables import separator_hint
    >>> separator_hint(["id", "text"])
    ''
    """
    if len(names) == 1 and ";" in names[0]:
        fix = "convert them to commas, for example with pandas: read_csv(FILE, sep=';').to_csv(OTHER, index=False)"
        return f"the columns seem to be separated by semicolons; {fix}"
    if len(names) == 1 and "\t" in names[0]:
        return "the columns seem to be separated by tabs; rename the file to end in .tsv"
    return ""


def check_text(value: object, where: str, allow_numbers: bool = False) -> str:
    """Return a value if it is a text.

    Args:
        value: the value.
        where: its file and line, for messages.
        allow_numbers: whether the message suggests numbers too.

    Raises:
        ValueError: the value is not a string, or not valid Unicode.

    >>> from clearhead.data.tables import check_text
    >>> check_text("one", "here")
    'one'
    """
    if not isinstance(value, str):
        expected = "a text or a number" if allow_numbers else "a text"
        raise ValueError(f"{where} is {'null' if value is None else type(value).__name__}; expected {expected}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{where} has half a surrogate pair, which is not valid Unicode") from None
    return value


def check_value(value: object, column: Column, where: str, allow_numbers: bool = False) -> object:
    """Return the value of a column if it is a text, or None in an optional column.

    With `any_type`, every value is returned that can be written again. Lists and objects are returned as plain JSON
    values, with null for NaN and infinity.

    Args:
        value: the value.
        column: its column.
        where: its file and line, for messages.
        allow_numbers: whether the message suggests numbers too.

    Raises:
        ValueError: the value is not a text, not valid Unicode or nested too deeply.

    >>> from clearhead.data.tables import Column, check_value
    >>> check_value([1.5, float("nan")], Column("scores", any_type=True), "here")
    [1.5, None]
    """
    name = f"{where}: column {column.name!r}"
    if isinstance(value, list | tuple | dict) and column.any_type:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
            return json.loads(check_text(text, name), parse_constant=lambda constant: None)
        except RecursionError:
            raise ValueError(f"{name} is nested too deeply") from None
    if (column.any_type and not isinstance(value, str)) or (value is None and column.optional):
        return value
    return check_text(value, name, allow_numbers)
