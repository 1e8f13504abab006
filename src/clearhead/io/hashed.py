"""Append to a file and know the hash of its contents."""

import contextlib
import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import IO

from clearhead.io.atomic import error_path


class HashedFile:
    """Append-only file with the SHA-256 of its contents, so that a writer can resume after an interruption.

    Args:
        path: the file; it is created if it is missing.
        size: the number of bytes to keep; the rest is truncated.

    Raises:
        OSError: the file cannot be written, or is not a regular file; the error has its path.

    >>> import tempfile, pathlib; from clearhead.io.hashed import HashedFile, has_content
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.part"
    >>> file = HashedFile(path, 0); file.write(b"one"); has_content(path, file.sync(), file.sha256)
    True
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        with error_path(path):
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
                raise OSError(errno.EINVAL, "this is a link, a pipe, a device or a folder; remove it")
            no_links = getattr(os, "O_NOFOLLOW", 0)
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | no_links, 0o666), "r+b")
            self._digest = _digest(self._file, size)
            self._file.truncate(size)
            self._file.seek(size)

    @property
    def sha256(self) -> str:
        """SHA-256 of the contents."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        with error_path(self.path):
            self._file.write(data)
        self._digest.update(data)

    def sync(self) -> int:
        """Sync to disk and return the size."""
        with error_path(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        """Close the file and keep it."""
        with contextlib.suppress(OSError):  # the next writer truncates an incomplete end
            self._file.close()


def has_content(path: Path, size: int, sha256: str) -> bool:
    """Return whether the first `size` bytes of a file have this hash."""
    if not path.is_file() or path.stat().st_size < size:
        return False
    with path.open("rb") as file:
        return _digest(file, size).hexdigest() == sha256


def _digest(file: IO[bytes], size: int) -> "hashlib._Hash":
    digest = hashlib.sha256()
    while size > 0 and (piece := file.read(min(size, 1 << 22))):
        digest.update(piece)
        size -= len(piece)
    return digest
