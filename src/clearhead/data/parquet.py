"""Read columns of Parquet files row by row."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clearhead.data.lines import Errors
from clearhead.data.tables import Cells, Column, check_value, missing_column


def check_parquet(source: str, columns: Sequence[Column], *, numbers: bool) -> None:
    """Check that a Parquet file has the columns, as text.

    Args:
        source: the file.
        columns: the columns to read.
        numbers: whether numbers are accepted too.

    Raises:
        ValueError: the file is not a Parquet file, a column is missing, repeated or of another type, or pyarrow is not
            installed.
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
        count = names.count(str(column.name))
        if count == 0 and column.optional:
            continue
        if count == 0:
            raise ValueError(f"{source}: {missing_column(column.name, names)}")
        if count > 1:
            raise ValueError(f"{source} has {count} columns named {column.name!r}; expected one")
        if column.any_type:
            continue
        kind = schema.field(column.name).type
        inner = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (_is_text(inner) or (numbers and _is_number(inner))):
            expected = "text or numbers" if numbers else "text"
            raise ValueError(f"{source}: column {column.name!r} has type {kind}; expected {expected}")


def parquet_rows(
    source: str,
    columns: Sequence[Column],
    *,
    numbers: bool,
    errors: Errors = "strict",
    advice: str = "write the file again with UTF-8 text",
    on_progress: Callable[[float], object] = lambda share: None,
) -> Iterator[Cells]:
    """Yield the rows of a Parquet file that `check_parquet` accepts.

    Args:
        source: the file.
        columns: the columns to read.
        numbers: whether numbers are accepted too, as text.
        errors: how to handle text that is not UTF-8: "strict" raises, "replace" inserts U+FFFD.
        advice: how to fix such text, for the message.
        on_progress: called for each row with the share of the file that has been read, from 0 to 1.

    Raises:
        ValueError: the file is damaged, or the value of a column is null or not UTF-8; the message names the row.
    """
    import pyarrow
    import pyarrow.parquet

    row = 0
    # without these two arguments a whole row group is read ahead, which may be the whole file
    with pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
        total = max(1, file.metadata.num_rows)
        available = set(file.schema_arrow.names)
        names = list(dict.fromkeys(column.name for column in columns if column.name in available))
        batches = file.iter_batches(batch_size=1024, columns=names)
        while True:
            try:
                batch = next(batches, None)
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(f"{source} is damaged after row {row}: {error}") from None
            if batch is None:
                return
            values = [
                _values(batch.column(column.name), column, source)
                if column.name in available
                else [None] * batch.num_rows
                for column in columns
            ]
            for cells in zip(*values, strict=True):
                row += 1
                on_progress(row / total)
                where = f"{source}, row {row}"
                row_values = []
                for value, column in zip(cells, columns, strict=True):
                    decoded = _decoded(value, column, where, errors, advice) if isinstance(value, bytes) else value
                    row_values.append(check_value(decoded, column, where, numbers))
                yield where, row_values


def _values(array: Any, column: Column, source: str) -> list[Any]:
    """Return the values of a column; texts as bytes if one of them is not UTF-8."""
    import pyarrow

    array = array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array
    if column.any_type and not _is_text(array.type):
        # Python's dates have no nanoseconds and end with the year 9999
        with contextlib.suppress(ValueError, OverflowError):
            return array.to_pylist()  # type: ignore[no-any-return]
    try:
        texts = array if _is_text(array.type) else array.cast(pyarrow.string())
    except pyarrow.ArrowException:
        raise ValueError(
            f"{source}: column {column.name!r} of type {array.type} has values that Python cannot represent; "
            "convert it to text"
        ) from None
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


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return any(is_kind(kind) for is_kind in (kinds.is_string, kinds.is_large_string, kinds.is_string_view))


def _is_number(kind: Any) -> bool:
    import pyarrow.types as kinds

    return any(is_kind(kind) for is_kind in (kinds.is_integer, kinds.is_floating, kinds.is_decimal))
