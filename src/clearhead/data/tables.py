"""Columns of tables: tab-separated and comma-separated values, JSON lines, Parquet; row by row, never held whole."""

import csv
import difflib
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.data.lines import Errors, strip_newline
from clearhead.io.json import json_error


@dataclass(frozen=True)
class Column:
    """A column that is wanted of a table.

    Args:
        name: its name, or its number from 0 where the table has no header.
        optional: a row may lack it; its value is None then.
    """

    name: str | int
    optional: bool = False


Cells = tuple[str, list[str | None]]
"""Where a row stands, for messages, and its values for the columns that are wanted."""


def json_rows(lines: Iterable[str], source: str, columns: Sequence[Column], *, numbers: bool) -> Iterator[Cells]:
    """The rows of JSON lines; blank lines are none.

    Args:
        lines: the lines.
        source: the file's name.
        columns: what is wanted of each object.
        numbers: whether numbers are taken too, as the text that stands for them.

    Raises:
        ValueError: a line that is no JSON object, or whose value for a column is missing or no text; it names the line.

    >>> from clearhead.data.tables import Column, json_rows
    >>> list(json_rows(['{"text": "Hi", "score": 4.50}'], "a.jsonl", [Column("score")], numbers=True))
    [('a.jsonl, line 1', ['4.50'])]
    """
    decode = (json.JSONDecoder(parse_int=str, parse_float=str) if numbers else json.JSONDecoder()).decode
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        if not line.strip():
            continue  # as often at the end; there is no record in it
        try:
            row = decode(strip_newline(line))
        except (ValueError, RecursionError) as error:  # a broken text, endless digits, nesting without end
            raise ValueError(f"{where}: not JSON: {json_error(error, line)}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a JSON {type(row).__name__}; an object is wanted")
        yield where, [_json_value(row, column, where, numbers) for column in columns]


def _json_value(row: dict[str, object], column: Column, where: str, numbers: bool) -> str | None:
    if column.name not in row and not column.optional:
        raise ValueError(f"{where}: {missing_column(column.name, list(row))}")
    value = row.get(str(column.name))
    if value is None and column.optional:
        return None
    return check_text(value, f"{where}: column {column.name!r}", numbers)


def separated_rows(
    lines: Iterable[str], source: str, columns: Sequence[Column], *, commas: bool, exact: bool = False
) -> Iterator[Cells]:
    """The rows of comma-separated or tab-separated values; empty lines are none.

    Commas: fields may be quoted and then hold commas, quotes (doubled) and line breaks. Tabs: they part fields, and
    nothing is quoted. Columns that are wanted by name are looked up in the first row, which is no data then.

    Args:
        lines: the lines, with their ends.
        source: the file's name.
        columns: what is wanted, all by name or all by number.
        commas: whether commas part the fields, or tabs.
        exact: whether a row must have these columns and no more.

    Raises:
        ValueError: no such column in the header or twice; a row with too few columns or with more than are known; a
            quote that is not closed. The message names file and line.

    >>> from clearhead.data.tables import Column, separated_rows
    >>> list(separated_rows(["a,b\\n", '1,"x,\\n', 'y"\\n'], "a.csv", [Column("b")], commas=True))
    [('a.csv, line 2', ['x,\\ny'])]
    """
    rows = _comma_rows(lines, source) if commas else _tab_rows(lines)
    named = any(isinstance(column.name, str) for column in columns)
    header = next(rows, (0, []))[1] if named else []
    if named and not header:
        return
    places = [_place(header, column, source) if named else int(column.name) for column in columns]
    needed = max((place for place, column in zip(places, columns, strict=True) if not column.optional), default=0) + 1
    most = len(header) if named else len(columns) if exact else None
    for number, row in rows:
        where = f"{source}, line {number}"
        if len(row) < needed or (most is not None and len(row) > most):
            wanted = _wanted(columns, needed, most, header)
            raise ValueError(f"{where} has {len(row)} column{'s' if len(row) > 1 else ''}; {wanted}")
        yield where, [row[place] if 0 <= place < len(row) else None for place in places]


def _tab_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        if text := strip_newline(line):
            yield number, text.split("\t")


def _comma_rows(lines: Iterable[str], source: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line on which each starts: the end of one whose quote is never closed says nothing."""
    reader = csv.reader(lines, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            fix = (
                "raise the limit with csv.field_size_limit, or use .jsonl or .parquet"
                if "field limit" in str(error)
                else "a field that holds a quote, a comma or a line break is quoted, and a quote in it doubled"
            )
            raise ValueError(f"{source}: the row that starts on line {start} cannot be read: {error}; {fix}") from None
        if row is None:
            return
        if row:
            yield start, row


def raise_field_limit() -> None:
    """Accept CSV fields of any length in this process.

    Python's limit of 131,072 characters belongs to the whole process. The library leaves it to the program that uses
    it; `clearhead` and its workers are programs of their own and call this once.
    """
    csv.field_size_limit(2**31 - 1)


def _place(header: list[str], column: Column, source: str) -> int:
    times = header.count(str(column.name))
    if times == 1:
        return header.index(str(column.name))
    if times > 1:
        raise ValueError(f"{source} has {times} columns named {column.name!r}; one is wanted")
    if column.optional:
        return -1
    raise ValueError(f"{source}: {missing_column(column.name, header)} (the names in its first line)")


def _wanted(columns: Sequence[Column], needed: int, most: int | None, header: list[str]) -> str:
    if header:
        return f"its header has {len(header)}: {', '.join(header)}"
    if most is None:
        return f"column {needed - 1}, counted from 0, is wanted"
    count = str(most) if needed == most else f"{needed} to {most}"
    return f"{count} {'is' if most == 1 else 'are'} wanted, or the columns' names or numbers"


def check_parquet(source: str, columns: Sequence[Column], *, numbers: bool) -> None:
    """Whether a Parquet file has the columns, as text.

    Raises:
        ValueError: no Parquet file, no such column or twice, a column of another type, or pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError('Parquet needs pyarrow: pip install "clearhead[parquet]"')
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(source)
        names = list(schema.names)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is not a Parquet file: {error}") from None
    for column in columns:
        times = names.count(str(column.name))
        if times == 0 and column.optional:
            continue
        if times == 0:
            raise ValueError(f"{source}: {missing_column(column.name, names)}")
        if times > 1:
            raise ValueError(f"{source} has {times} columns named {column.name!r}; one is wanted")
        kind = schema.field(column.name).type
        inner = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (_is_text(inner) or (numbers and _is_number(inner))):
            wanted = "text or numbers are wanted" if numbers else "text is wanted"
            raise ValueError(f"{source}: column {column.name!r} holds {kind}; {wanted}")


def parquet_rows(
    source: str,
    columns: Sequence[Column],
    *,
    numbers: bool,
    errors: Errors = "strict",
    advice: str = "write the file again with UTF-8 text",
    on_progress: Callable[[float], object] = lambda share: None,
) -> Iterator[Cells]:
    """The rows of a Parquet file that `check_parquet` has found in order.

    Args:
        source: the file.
        columns: what is wanted.
        numbers: whether numbers are taken too, as text.
        errors: what to do with text that is not UTF-8: "strict" stops, "replace" puts U+FFFD for the bytes.
        advice: what to do about such text, for the message.
        read: called for each row with the share of the file that has been read, from 0 to 1.

    Raises:
        ValueError: a damaged file, or a row whose value for a column is null or not UTF-8; it names the row.
    """
    import pyarrow
    import pyarrow.parquet

    row = 0
    # without these two, a whole row group is read ahead, which may be the whole file
    with pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
        total = max(1, file.metadata.num_rows)
        there = set(file.schema_arrow.names)
        names = list(dict.fromkeys(column.name for column in columns if column.name in there))
        batches = file.iter_batches(batch_size=1024, columns=names)
        while True:
            try:
                batch = next(batches, None)
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(f"{source} is damaged behind row {row}: {error}") from None
            if batch is None:
                return
            values = [
                _texts(batch.column(column.name)) if column.name in there else [None] * batch.num_rows
                for column in columns
            ]
            for cells in zip(*values, strict=True):
                row += 1
                on_progress(row / total)
                where = f"{source}, row {row}"
                texts = []
                for value, column in zip(cells, columns, strict=True):
                    text = _decoded(value, column, where, errors, advice) if isinstance(value, bytes) else value
                    texts.append(_parquet_value(text, column, where, numbers))
                yield where, texts


def _texts(array: Any) -> list[str | None] | list[bytes | None]:
    """Return the values of a column; as bytes where one of them is not UTF-8."""
    import pyarrow

    array = array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array
    texts = array if _is_text(array.type) else array.cast(pyarrow.string())
    try:
        return texts.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return texts.cast(pyarrow.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _decoded(value: bytes, column: Column, where: str, errors: Errors, advice: str) -> str:
    try:
        return value.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: column {column.name!r} is not UTF-8 at byte {error.start + 1} "
            f"(0x{value[error.start]:02x}); {advice}"
        ) from None


def _parquet_value(value: str | None, column: Column, where: str, numbers: bool) -> str | None:
    if value is None and column.optional:
        return None
    return check_text(value, f"{where}: column {column.name!r}", numbers)


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return any(is_kind(kind) for is_kind in (kinds.is_string, kinds.is_large_string, kinds.is_string_view))


def _is_number(kind: Any) -> bool:
    import pyarrow.types as kinds

    return any(is_kind(kind) for is_kind in (kinds.is_integer, kinds.is_floating, kinds.is_decimal))


def missing_column(name: str | int, names: Sequence[str]) -> str:
    """What is said of a column that is not there: those that are, and the one that was meant, perhaps.

    >>> from clearhead.data.tables import missing_column
    >>> missing_column("txt", ["text", "label"])
    "no column 'txt'; it has: text, label; is 'text' meant?"
    """
    nearest = difflib.get_close_matches(str(name), names, n=1)
    return f"no column {name!r}; it has: {', '.join(names)}" + (f"; is {nearest[0]!r} meant?" if nearest else "")


def check_text(value: object, where: str, numbers: bool = False) -> str:
    """A value that is a text.

    Raises:
        ValueError: it is none, or no Unicode text.

    >>> from clearhead.data.tables import check_text
    >>> check_text("one", "here")
    'one'
    """
    if not isinstance(value, str):
        wanted = "a text or a number" if numbers else "a text"
        raise ValueError(f"{where} holds {'null' if value is None else type(value).__name__}; {wanted} is wanted")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds half a surrogate pair, which is no Unicode text") from None
    return value
