"""Write files atomically."""

import contextlib
import glob
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a binary file for writing that replaces `path` only if the block ends without an error.

    The file is written under a temporary name in the same folder, synced, then renamed to `path`. On an error the
    temporary file is removed and an existing file at `path` stays unchanged.

    Args:
        path: the file.

    Raises:
        OSError: the folder does not exist or is not writable, or the disk is full.

    >>> import tempfile, pathlib; from clearhead.io.atomic import atomic_file
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_file(path) as file: _ = file.write(b"all of it")
    """
    path = Path(path)
    with error_path(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename in (None, temporary):  # the error of a full disk has no path
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files that killed processes left next to a file. Hold its `locks.writer_lock`.

    >>> import pathlib, tempfile; from clearhead.io.atomic import remove_leftovers
    >>> remove_leftovers(pathlib.Path(tempfile.mkdtemp()) / "a.txt")
    """
    # a dot in place of a letter would be a file of another output, such as a.npy.long.npy
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{_LETTER * 8}.part"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)


_LETTER = "[a-z0-9_]"
"""Pattern of the letters of `tempfile.mkstemp`."""


@contextlib.contextmanager
def error_path(path: Path) -> Iterator[None]:
    """Add a path to the OSErrors in a block; the error of a full disk has none.

    Args:
        path: the path.

    Raises:
        OSError: the original error with the path.

    >>> import pathlib; from clearhead.io.atomic import error_path
    >>> with error_path(pathlib.Path("all")): raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'all'
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def hidden_sibling(path: Path, suffix: str) -> Path:
    """Return the hidden path in the same folder that a writer of `path` uses."""
    return path.with_name(f".{path.name}.{suffix}")


def _mode(path: Path) -> int:
    """Return the permissions of a file opened normally; files of mkstemp are private."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
