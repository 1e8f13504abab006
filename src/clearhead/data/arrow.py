"""Read columns of Parquet and Arrow files."""

import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clearhead.data.lines import Errors, encoding_error
from clearhead.data.tables import Cells, Column, check_value, missing_column
from clearhead.io.json import read_json

SUFFIXES = (".parquet", ".arrow")

_FILE_MAGIC, _STREAM_END = b"ARROW1", b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""First bytes of an Arrow file with a footer, and last bytes of an Arrow stream (Arrow's IPC format)."""

_FIRST_ANSWER = {"answer": ("text", ""), "answer_start": ("answer_start", -1)}
"""Columns of the first of SQuAD's answers: the list in the column `answers`, and the value without an answer."""

_MISSING_LABEL = -1
"""Number that `datasets` writes for a label that is not known."""


def check_arrow(source: str, columns: Sequence[Column], *, allow_numbers: bool) -> None:
    """Check that a Parquet or Arrow file has the columns, as text.

    Args:
        source: the file.
        columns: the columns to read. A dot selects a field of a column of structs, such as "translation.en". The
            columns answer and answer_start of SQuAD are those of the first answer in the column `answers`.
        allow_numbers: whether numbers are accepted too.

    Raises:
        ValueError: the file has another format, a column is missing, repeated or of another type, or pyarrow is not
            installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError(f'{source} needs pyarrow: pip install "clearhead[parquet]"')
    import pyarrow

    schema = _read_schema(source)
    for column in columns:
        count = schema.names.count(str(column.name))
        kind = _column_type(schema, str(column.name))
        if count == 0 and kind is None and column.optional:
            continue
        if count == 0 and kind is None:
            raise ValueError(f"{source}: {missing_column(column.name, _column_names(schema))}")
        if count > 1:
            raise ValueError(f"{source} has {count} columns named {column.name!r}; expected one")
        if column.any_type:
            continue
        inner = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (_is_text(inner) or (allow_numbers and _is_number(inner))):
            expected = "text or numbers" if allow_numbers else "text"
            raise ValueError(f"{source}: column {column.name!r} has type {kind}; expected {expected}")


def arrow_rows(
    source: str,
    columns: Sequence[Column],
    *,
    allow_numbers: bool,
    errors: Errors = "strict",
    advice: str = "write the file again with UTF-8 text",
    on_progress: Callable[[float], object] = lambda share: None,
) -> Iterator[Cells]:
    """Yield the rows of a file that `check_arrow` accepts. Class labels of `datasets` are read as their names.

    Args:
        source: the file.
        columns: the columns to read.
        allow_numbers: whether numbers are accepted too, as text.
        errors: how to handle text that is not UTF-8: "strict" raises, "replace" inserts U+FFFD.
        advice: how to fix such text, for the message.
        on_progress: called for each row with the share of the file that has been read, from 0 to 1.

    Raises:
        ValueError: the file is damaged, or the value of a column is null or not UTF-8; the message names the row.
    """
    row, share = 0, 0.0
    labels = _class_labels(source)
    for batch, end in _batches(source, [str(column.name) for column in columns]):
        values = [_values(batch, column, labels.get(str(column.name)), source, row) for column in columns]
        for number, cells in enumerate(zip(*values, strict=True), start=1):
            row += 1
            on_progress(share + (end - share) * number / batch.num_rows)
            where = f"{source}, row {row}"
            row_values = []
            for value, column in zip(cells, columns, strict=True):
                decoded = _decoded(value, column, where, errors, advice) if isinstance(value, bytes) else value
                row_values.append(check_value(decoded, column, where, allow_numbers))
            yield where, row_values
        share = end


def _read_schema(source: str) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        if not source.endswith(".arrow"):
            schema = pyarrow.parquet.read_schema(source)
        else:
            with _open_arrow(source) as (reader, _):
                schema = reader.schema
        str(schema.names)  # raises an error if a name is not UTF-8
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        kind = "an Arrow" if source.endswith(".arrow") else "a Parquet"
        raise ValueError(f"{source} is not {kind} file: {_one_line(error)}") from None
    return schema


@contextlib.contextmanager
def _open_arrow(source: str) -> Iterator[tuple[Any, Any]]:
    """Open an Arrow file or stream; yield its reader and the mapped file."""
    import pyarrow
    import pyarrow.ipc

    with pyarrow.memory_map(source) as mapped:
        has_footer = mapped.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        if not has_footer:
            mapped.seek(max(0, mapped.size() - len(_STREAM_END)))
            if mapped.read() != _STREAM_END:
                raise pyarrow.ArrowInvalid("the mark at the end is missing, so the file is truncated")
        mapped.seek(0)
        with (pyarrow.ipc.open_file if has_footer else pyarrow.ipc.open_stream)(mapped) as reader:
            yield reader, mapped


def _batches(source: str, names: Sequence[str]) -> Iterator[tuple[Any, float]]:
    """Yield batches of rows, each with the share of the file up to its end."""
    import pyarrow
    import pyarrow.parquet

    rows = 0
    try:
        if source.endswith(".arrow"):
            with _open_arrow(source) as (reader, mapped):
                if isinstance(reader, pyarrow.ipc.RecordBatchFileReader):
                    count = reader.num_record_batches
                    batches = ((reader.get_batch(index), (index + 1) / count) for index in range(count))
                else:
                    batches = ((batch, mapped.tell() / mapped.size()) for batch in reader)
                for batch, share in batches:
                    _validate(batch, names)
                    yield batch, share
                    rows += batch.num_rows
            return
        # without these two arguments a whole row group is read ahead, which may be the whole file
        with pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
            total, available = max(1, file.metadata.num_rows), file.schema_arrow.names
            selected = {_container(file.schema_arrow, name) for name in names}
            columns = [name for name in available if name in selected]
            size = _rows_per_batch(file, columns)
            for batch in file.iter_batches(batch_size=size, columns=columns):
                yield batch, (rows + batch.num_rows) / total
                rows += batch.num_rows
    except pyarrow.ArrowMemoryError as error:
        raise ValueError(f"{source}: the memory does not hold the rows after row {rows}: {_one_line(error)}") from None
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is damaged after row {rows}: {_one_line(error)}") from None


_ROWS_PER_BATCH, _BYTES_PER_BATCH = 1024, 2**28


def _rows_per_batch(file: Any, columns: Sequence[str]) -> int:
    """Return the number of rows of a Parquet file that certainly fit into `_BYTES_PER_BATCH`.

    A value that many rows share is stored once, so a few bytes of a file can become gigabytes of a batch.
    """
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    numbers = [
        number for number, path in enumerate(paths) if any(f"{path}.".startswith(f"{name}.") for name in columns)
    ]
    largest = 1
    for group in range(file.num_row_groups):
        # to read a row first raises an error if the metadata is damaged; to ask for the metadata ends the process
        if next(file.iter_batches(batch_size=1, row_groups=[group], columns=columns), None) is not None:
            metadata = file.metadata.row_group(group)
            sizes = [metadata.column(number).total_uncompressed_size for number in numbers]
            largest = max(largest, *sizes)  # no value is larger
    return max(1, min(_ROWS_PER_BATCH, _BYTES_PER_BATCH // largest))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _validate(batch: Any, names: Sequence[str]) -> None:
    """Check that the offsets and indices of columns are inside their buffers, which pyarrow does not do by itself.

    Raises:
        pyarrow.ArrowInvalid: one is not. To read its values would end the process.
    """
    import pyarrow

    for name in {_container(batch.schema, name) for name in names} & set(batch.schema.names):
        column = batch.column(name)
        with contextlib.suppress(pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
            column = column.view(_as_binary(column.type))  # wrong UTF-8 is found later, with its row
        column.validate(full=True)


def _as_binary(kind: Any) -> Any:
    """Return a type with bytes in place of text."""
    import pyarrow
    import pyarrow.types as kinds

    if kinds.is_string(kind):
        return pyarrow.binary()
    if kinds.is_large_string(kind):
        return pyarrow.large_binary()
    if kinds.is_list(kind):
        return pyarrow.list_(_as_binary(kind.value_type))
    if kinds.is_struct(kind):
        return pyarrow.struct([field.with_type(_as_binary(field.type)) for field in kind])
    return kind


def _without_nanoseconds(kind: Any, *, as_text: bool) -> Any:
    """Return a type with microseconds or text in place of nanoseconds, which Python's times do not have."""
    import pyarrow
    import pyarrow.types as kinds

    if kinds.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_without_nanoseconds(kind.value_type, as_text=as_text)))
    if kinds.is_struct(kind):
        return pyarrow.struct([field.with_type(_without_nanoseconds(field.type, as_text=as_text)) for field in kind])
    if getattr(kind, "unit", None) != "ns":
        return kind
    if as_text:
        return pyarrow.string()
    if kinds.is_timestamp(kind):
        return pyarrow.timestamp("us", kind.tz)
    return pyarrow.duration("us") if kinds.is_duration(kind) else pyarrow.time64("us")


def _container(schema: Any, name: str) -> str:
    """Return the column that contains a column of rows: itself, its column of structs, or SQuAD's answers."""
    if name in schema.names:
        return name
    return "answers" if name in _FIRST_ANSWER else name.partition(".")[0]


def _column_type(schema: Any, name: str) -> Any:
    """Return the type of a column or of a field of a column of structs; None for other names."""
    import pyarrow

    if name in schema.names:
        return schema.field(name).type if schema.names.count(name) == 1 else None
    if name in _FIRST_ANSWER:
        kind = _column_type(schema, f"answers.{_FIRST_ANSWER[name][0]}") if "answers" in schema.names else None
        return kind.value_type if kind is not None and pyarrow.types.is_list(kind) else None
    first, *fields = name.split(".")
    if schema.names.count(first) != 1:
        return None
    kind = schema.field(first).type
    for field in fields:
        if not pyarrow.types.is_struct(kind) or kind.get_field_index(field) < 0:
            return None
        kind = kind.field(field).type
    return kind


def _column_names(schema: Any) -> list[str]:
    """Return the names of all columns, and of the fields of columns of structs in place of these."""
    import pyarrow

    names = []
    for field in schema:
        is_struct = pyarrow.types.is_struct(field.type)
        names += [f"{field.name}.{inner.name}" for inner in field.type] if is_struct else [field.name]
    return names


def _column(batch: Any, name: str) -> Any:
    """Return a column or a field of a column of structs; None for other names."""
    import pyarrow.compute

    if _column_type(batch.schema, name) is None:
        return None
    if name in batch.schema.names:
        return batch.column(name)
    if name in _FIRST_ANSWER:
        field, missing = _FIRST_ANSWER[name]
        answers = pyarrow.compute.struct_field(batch.column("answers"), [field])
        first_answers = [found[0] if found else missing for found in answers.to_pylist()]
        return pyarrow.array(first_answers, answers.type.value_type)
    first, *fields = name.split(".")
    return pyarrow.compute.struct_field(batch.column(first), fields)


def _class_labels(source: str) -> Mapping[str, Sequence[str]]:
    """Return the names of the class labels that `datasets` wrote into a file or next to it, by column."""
    metadata = _read_schema(source).metadata or {}
    described = Path(source).with_name("dataset_info.json")
    try:
        if b"huggingface" in metadata:
            features = json.loads(metadata[b"huggingface"])["info"]["features"]
        else:
            features = read_json(described)["features"] if source.endswith(".arrow") and described.is_file() else {}
        classes = {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name: [str(label) for label in feature["names"]]
        for name, feature in classes.items()
        if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)
    }


def _values(batch: Any, column: Column, labels: Sequence[str] | None, source: str, row: int) -> list[Any]:
    """Return the values of a column after `row` earlier rows; texts as bytes if one of them is not UTF-8."""
    import pyarrow

    array = _column(batch, str(column.name))
    if array is None:
        return [None] * batch.num_rows
    if pyarrow.types.is_dictionary(array.type):
        return _shared_values(array, column, labels, source, row)
    if column.any_type and not _is_text(array.type):
        for as_text in (False, True):
            try:
                return array.cast(_without_nanoseconds(array.type, as_text=as_text)).to_pylist()  # type: ignore[no-any-return]
            except UnicodeDecodeError:  # in a list or a struct
                for number, scalar in enumerate(array, start=row + 1):
                    _checked(scalar, f"{source}, row {number}, column {column.name!r}")
            except (ValueError, OverflowError, pyarrow.ArrowNotImplementedError):
                pass  # Python's dates have no nanoseconds and end with the year 9999
    if labels and pyarrow.types.is_integer(array.type):
        return [_label(number, labels, f"{source}: column {column.name!r}") for number in array.to_pylist()]
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


def _shared_values(array: Any, column: Column, labels: Sequence[str] | None, source: str, row: int) -> list[Any]:
    """Return the values of an array with a dictionary. Equal values are one object, however many rows have them."""
    import pyarrow

    used = array.indices.unique().drop_null()
    values = pyarrow.record_batch([array.dictionary.take(used)], [str(column.name)])
    shared = dict(zip(used.to_pylist(), _values(values, column, labels, source, row), strict=True))
    return [shared.get(index) for index in array.indices.to_pylist()]


def _label(number: int | None, labels: Sequence[str], where: str) -> str | None:
    if number is None or number == _MISSING_LABEL:
        return None
    if not 0 <= number < len(labels):
        raise ValueError(f"{where} has the label {number}, but the file names only {len(labels)} labels")
    return labels[number]


def _checked(scalar: Any, where: str) -> None:
    try:
        scalar.as_py()
    except UnicodeDecodeError as error:
        raise encoding_error(error, where, "write the file again with UTF-8 text") from None


def _decoded(value: bytes, column: Column, where: str, errors: Errors, advice: str) -> str:
    try:
        return value.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise encoding_error(error, f"{where}, column {column.name!r}", advice) from None


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return any(is_kind(kind) for is_kind in (kinds.is_string, kinds.is_large_string, kinds.is_string_view))


def _is_number(kind: Any) -> bool:
    import pyarrow.types as kinds

    return any(is_kind(kind) for is_kind in (kinds.is_integer, kinds.is_floating, kinds.is_decimal))
