"""Texts from files: lines of text, JSON lines, Parquet; one after the other, never held whole."""

import codecs
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

Errors = Literal["strict", "replace"]
DEFAULT_COLUMN = "text"


class Corpus:
    """The texts of one or several files, in order.

    The format follows the ending: .jsonl (the value under `column` of each line's object), .parquet (the column), and
    lines of text for everything else and for standard input.

    Args:
        sources: files, or "-" for standard input.
        column: name of the column in .jsonl and .parquet files; "text" where None.
        errors: what to do with bytes that are not UTF-8: "strict" stops, "replace" puts U+FFFD for them.

    Raises:
        ValueError: no such file, a folder, a Parquet file without the column or whose column is no text, a column for
            files that have none. While iterating: bytes that are not UTF-8, a line that is no JSON object or has no
            text under the column; the message names file and line.

    >>> from clearhead.text.corpus import Corpus
    >>> Corpus(["-"]).total_bytes is None
    True
    """

    def __init__(self, sources: Sequence[str | Path], *, column: str | None = None, errors: Errors = "strict") -> None:
        self.sources = [str(source) for source in sources]
        self.column, self.errors = column, errors
        self.read_bytes = 0
        for source in self.sources:
            self._check(source)

    @property
    def total_bytes(self) -> int | None:
        """The size of all files; None with standard input among them."""
        if "-" in self.sources:
            return None
        return sum(Path(source).stat().st_size for source in self.sources)

    def describe(self) -> list[list[str | int]]:
        """Each file with its size and time of change: what must be alike for a run to be resumed."""
        files = [Path(source).resolve() for source in self.sources if source != "-"]
        return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]

    def __iter__(self) -> Iterator[str]:
        """The texts; `read_bytes` says how far it has come, roughly."""
        self.read_bytes = 0
        before = 0
        for source in self.sources:
            yield from self._texts(source)
            if source != "-":
                before += Path(source).stat().st_size
                self.read_bytes = before

    def _texts(self, source: str) -> Iterator[str]:
        if source == "-":
            yield from self._lines(_standard_input(), "standard input")
        elif source.endswith(".parquet"):
            yield from self._parquet(source)
        else:
            with Path(source).open("rb") as file:
                lines = self._lines(file, source)
                yield from self._jsonl(lines, source) if source.endswith(".jsonl") else lines

    def _check(self, source: str) -> None:
        path = Path(source)
        if source != "-" and not path.exists():
            raise ValueError(f"no such file: {path}")
        if source != "-" and path.is_dir():
            raise ValueError(f"{path} is a folder; a text file is wanted")
        if source.endswith(".parquet"):
            self._check_parquet(source)
        elif not source.endswith(".jsonl") and self.column is not None:
            raise ValueError(f"{source} has no columns; --column is for .jsonl and .parquet files")

    def _lines(self, file: Iterable[bytes], name: str) -> Iterator[str]:
        """A line ends with LF or CR LF and with nothing else: `str.splitlines` would also cut at form feeds and at
        Unicode's own separators, which stand inside real texts. A byte order mark at the start is left out."""
        for number, line in enumerate(file, start=1):
            self.read_bytes += len(line)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if not line:
                    return
            try:
                text = line.decode("utf-8", self.errors)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{name}, line {number}: not UTF-8 at byte {error.start + 1} of the line "
                    f"(0x{line[error.start]:02x}); --errors replace goes on with a replacement character"
                ) from None
            yield text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text

    def _jsonl(self, lines: Iterable[str], source: str) -> Iterator[str]:
        column = self.column or DEFAULT_COLUMN
        for number, line in enumerate(lines, start=1):
            where = f"{source}, line {number}"
            if not line.strip():
                continue  # as often at the end; there is no record in it
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # a broken text, endless digits, nesting without end
                raise ValueError(f"{where}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{where}: a JSON {type(row).__name__}; an object is wanted")
            if column not in row:
                raise ValueError(f"{where}: no column {column!r}; it has: {', '.join(row)}")
            yield _text(row[column], f"{where}: column {column!r}")

    def _parquet(self, source: str) -> Iterator[str]:
        import pyarrow
        import pyarrow.parquet

        column = self.column or DEFAULT_COLUMN
        row = 0
        # without these two, a whole row group is read ahead, which may be the whole file
        with pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
            share = Path(source).stat().st_size / max(1, file.metadata.num_rows)
            start = self.read_bytes
            batches = file.iter_batches(batch_size=1024, columns=[column])
            while True:
                try:
                    batch = next(batches, None)
                except (pyarrow.ArrowException, OSError) as error:
                    raise ValueError(f"{source} is damaged behind row {row}: {error}") from None
                if batch is None:
                    return
                for value in batch.column(0).to_pylist():
                    row += 1
                    self.read_bytes = start + int(share * row)
                    yield _text(value, f"{source}, row {row}: column {column!r}")

    def _check_parquet(self, source: str) -> None:
        if importlib.util.find_spec("pyarrow") is None:
            raise ValueError('Parquet needs pyarrow: pip install "clearhead[parquet]"')
        import pyarrow
        import pyarrow.parquet

        column = self.column or DEFAULT_COLUMN
        try:
            schema = pyarrow.parquet.read_schema(source)
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{source} is not a Parquet file: {error}") from None
        if column not in schema.names:
            raise ValueError(f"{source}: no column {column!r}; it has: {', '.join(schema.names)}")
        if schema.names.count(column) > 1:
            raise ValueError(f"{source} has {schema.names.count(column)} columns named {column!r}; one is wanted")
        kind = schema.field(column).type
        inner = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        texts = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
        if not any(is_text(inner) for is_text in texts):
            raise ValueError(f"{source}: column {column!r} holds {kind}; text is wanted")


def _standard_input() -> Iterable[bytes]:
    """Standard input as a reader of its own: a thread that waits in `sys.stdin` would keep Python from ending."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; give a file")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (OSError, ValueError):  # not a file: somebody put an object in its place
        return sys.stdin.buffer


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} holds {'null' if value is None else type(value).__name__}; a text is wanted")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds half a surrogate pair, which is no Unicode text") from None
    return value
