"""Texts from files, one a line."""

import codecs
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

Errors = Literal["strict", "replace"]


def read_lines(source: str | Path, errors: Errors = "strict") -> Iterator[str]:
    """The lines of a UTF-8 file, or of standard input for "-", without their ends.

    A line ends with LF or CR LF and with nothing else: `str.splitlines` would also cut at form feeds and at Unicode's
    own separators, which stand inside real texts. A byte order mark at the start is left out.

    Args:
        source: a file, or "-".
        errors: "strict" stops at bytes that are not UTF-8; "replace" puts U+FFFD for them.

    Raises:
        ValueError: no such file, a folder, or bytes that are not UTF-8, with the line's number.
    """
    if str(source) == "-":
        yield from _decoded(sys.stdin.buffer, "standard input", errors)
        return
    path = Path(source)
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a text file is wanted")
    with path.open("rb") as file:
        yield from _decoded(file, str(path), errors)


def _decoded(file: Iterable[bytes], name: str, errors: Errors) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
            if not line:
                return
        try:
            text = line.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: not UTF-8 at byte {error.start + 1} of the line (0x{line[error.start]:02x}); "
                "--errors replace goes on with a replacement character"
            ) from None
        yield text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
