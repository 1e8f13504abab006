"""Read files, with errors that name them: an error of the operating system while it reads has no path."""

import io
from pathlib import Path
from typing import Any

from clearhead.io.atomic import error_path


def open_file(path: Path) -> io.BufferedReader:
    """Open a file, a pipe or a device for reading bytes.

    Args:
        path: the file.

    Raises:
        OSError: the file does not exist or cannot be read, also later while it is read.

    >>> import pathlib, tempfile; from clearhead.io.reading import open_file
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"; _ = path.write_bytes(b"one")
    >>> with open_file(path) as file: file.read()
    b'one'
    """
    return io.BufferedReader(_NamedFile(path))


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file of a model or index.

    Args:
        path: the file.

    Raises:
        ValueError: it is a pipe or a device, which may have no end.
        OSError: it does not exist or cannot be read.

    >>> import pathlib; from clearhead.io.reading import read_file
    >>> read_file(pathlib.Path("/dev/null"))
    Traceback (most recent call last):
    ValueError: /dev/null is a pipe or a device; expected a file
    """
    check_no_pipe(path)
    with open_file(path) as file:
        return file.read()


def check_no_pipe(path: Path) -> None:
    """Check that a path is not a pipe or a device.

    Raises:
        ValueError: it is.

    >>> import pathlib; from clearhead.io.reading import check_no_pipe
    >>> check_no_pipe(pathlib.Path("config.json"))
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} is a pipe or a device; expected a file")


class _NamedFile(io.FileIO):
    def readinto(self, buffer: Any) -> int | None:
        with error_path(Path(str(self.name))):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with error_path(Path(str(self.name))):
            return super().readall()
