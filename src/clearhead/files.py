"""Files appear whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file to write to, which takes its name only when the block ends without an error.

    It is written under a temporary name in the same folder, synced, then renamed over `path`; on an error the
    temporary file is removed and what stood at `path` stays.

    Raises:
        OSError: the folder does not exist or cannot be written, or the disk is full.

    >>> import tempfile, pathlib; from clearhead.files import whole_file
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> with whole_file(path) as file: _ = file.write(b"all of it")
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def check_place(path: Path) -> None:
    """Whether a file can be written to a path, before anything is computed for it.

    Raises:
        ValueError: the path is a folder, or its folder is missing or not writable.

    >>> import tempfile, pathlib; from clearhead.files import check_place
    >>> check_place(pathlib.Path(tempfile.mkdtemp()) / "a.txt")
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a file is wanted")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path}: the folder {path.parent} cannot be written to")


def _mode(path: Path) -> int:
    """The permissions a newly opened file would have: mkstemp's own shut everybody else out."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
