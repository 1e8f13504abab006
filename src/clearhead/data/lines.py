"""Read lines of text files: line endings, encodings and compression."""

import codecs
import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Literal, cast

from clearhead.data.file_formats import GZIP, check_text_format, file_extension
from clearhead.io.reading import open_file

Errors = Literal["strict", "replace"]

_FIRST = 1024
"""Number of bytes that determine the format of a file."""


def check_file(path: Path) -> Path:
    """Return a path if it is a file.

    Raises:
        ValueError: the path does not exist, or is a folder.

    >>> import tempfile, pathlib; from clearhead.data.lines import check_file
    >>> check_file(pathlib.Path(tempfile.mkstemp()[1])).exists()
    True
    """
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a text file")
    return path


def check_not_json(path: Path) -> None:
    """Check that a file of texts is not one JSON document, whose lines are not texts.

    Raises:
        ValueError: the name ends in .json or .json.gz.

    >>> import pathlib; from clearhead.data.lines import check_not_json
    >>> check_not_json(pathlib.Path("texts.jsonl"))
    """
    if file_extension(path) == ".json":
        raise ValueError(
            f"{path} is JSON; expected a .jsonl file with one object per line. Convert a list of objects with "
            f"`jq -c '.[]' {path}`, or rename the file if each line is an object"
        )


def content_hash(path: Path) -> str | None:
    """Return the SHA-256 of a regular file; None for a pipe, which can only be read once.

    >>> import tempfile, pathlib; from clearhead.data.lines import content_hash
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"; _ = path.write_bytes(b"one")
    >>> content_hash(path)[:12]
    '7692c3ad3540'
    """
    if not path.is_file():
        return None
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_encoding(encoding: str) -> str:
    """Return the standard name of an encoding in which LF ends a line.

    Raises:
        ValueError: the encoding is unknown, or has other line endings, as UTF-16 has.

    >>> from clearhead.data.lines import check_encoding
    >>> check_encoding("Latin-1")
    'iso8859-1'
    """
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")
        ends_lines = "\n".encode(name) == b"\n"
    except (LookupError, ValueError):
        raise ValueError(f"encoding {encoding!r:.60} is unknown. Common ones are utf-8, latin-1 and cp1252") from None
    if not ends_lines:
        raise ValueError(f"encoding {encoding!r:.60} cannot be read line by line. Convert the file to UTF-8")
    return name


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a text file for reading bytes; gzip data is decompressed, whatever the file name.

    Raises:
        ValueError: the file has another format, or a .gz file is empty, damaged or not gzip (also while it is read).

    >>> import gzip, tempfile, pathlib; from clearhead.data.lines import open_bytes
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt.gz"; _ = path.write_bytes(gzip.compress(b"one"))
    >>> with open_bytes(path) as file: file.read()
    b'one'
    """
    with open_file(path) as plain:
        first = plain.peek(_FIRST)
        if not first.startswith(GZIP):
            if path.suffix == ".gz":
                what = "is not gzip data. Rename the file without .gz" if first else "is empty, not a gzip file"
                raise ValueError(f"{path} {what}")
            check_text_format(first, str(path))
            yield plain
            return
        try:
            with gzip.GzipFile(fileobj=plain) as unpacked:
                check_text_format(unpacked.peek(_FIRST), f"{path}, decompressed,")
                yield cast(IO[bytes], unpacked)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is truncated, or not a gzip file: {error}") from None


def byte_lines(file: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield lines with their endings, without a byte order mark; a file of only a mark has no lines.

    >>> from clearhead.data.lines import byte_lines
    >>> list(byte_lines([b"\\xef\\xbb\\xbfone\\n", b"two"], "utf-8"))
    [b'one\\n', b'two']
    """
    lines = iter(file)
    first = next(lines, b"")
    if encoding == "utf-8":
        first = first.removeprefix(codecs.BOM_UTF8)
    if first:
        yield first
        yield from lines


def text_lines(
    file: Iterable[bytes],
    name: str,
    *,
    encoding: str = "utf-8",
    errors: Errors = "strict",
    advice: str,
    on_bytes: Callable[[int], object] = lambda size: None,
) -> Iterator[str]:
    """Yield lines as text, with their endings.

    Only LF and CR LF end a line: `str.splitlines` would also split at form feeds and Unicode separators, which occur
    inside texts.

    Args:
        file: lines of bytes.
        name: the file name, for messages.
        encoding: the encoding, from `check_encoding`.
        errors: how to handle invalid bytes: "strict" raises, "replace" inserts U+FFFD.
        advice: how to fix invalid bytes, for the message.
        on_bytes: called with the number of bytes of each line.

    Raises:
        ValueError: bytes are invalid in the encoding; the message names line and byte.

    >>> from clearhead.data.lines import text_lines
    >>> list(text_lines([b"caf\\xe9\\n"], "a.txt", encoding="iso8859-1", advice=""))
    ['café\\n']
    """
    for number, line in enumerate(byte_lines(file, encoding), start=1):
        on_bytes(len(line))
        try:
            yield line.decode(encoding, errors)
        except UnicodeDecodeError as error:
            raise encoding_error(error, f"{name}, line {number}", advice, encoding) from None


def encoding_error(error: UnicodeDecodeError, where: str, advice: str, encoding: str = "utf-8") -> ValueError:
    """Return the error about bytes that are invalid in an encoding.

    Args:
        error: the error of `bytes.decode`.
        where: the file, and the line or the row and column.
        advice: how to fix it.
        encoding: the encoding.

    >>> from clearhead.data.lines import encoding_error
    >>> try:
    ...     b"caf\\xe9".decode()
    ... except UnicodeDecodeError as error:
    ...     encoding_error(error, "a.txt, line 1", "convert the file")
    ValueError('a.txt, line 1: not UTF-8 at byte 4 (0xe9); convert the file')
    """
    byte = error.object[error.start]
    return ValueError(f"{where}: not {encoding.upper()} at byte {error.start + 1} (0x{byte:02x}); {advice}")


def strip_newline(line: str) -> str:
    """Return a line without its LF or CR LF.

    >>> from clearhead.data.lines import strip_newline
    >>> strip_newline("one\\r\\n")
    'one'
    """
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
