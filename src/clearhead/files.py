"""Files and folders appear whole or not at all."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)


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
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            raise OSError(error.errno, error.strerror, str(path)) from None
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


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name only when the block ends without an error.

    It is filled under a hidden name beside its place, synced, then renamed; a folder that stood there gives way. On an
    error it is removed, and what stood there stays. What a kill left under the hidden name goes at the next time, so
    two processes do not fill the same folder at once: see `alone`. What stood there and a kill left under a hidden name
    of its own, between the two renames, comes back.

    Raises:
        OSError: the place cannot be written to, or the disk is full.

    >>> import tempfile, pathlib; from clearhead.files import whole_folder
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "all"
    >>> with whole_folder(place) as part: _ = (part / "a.txt").write_text("of it")
    """
    part, old = _beside(folder, "part"), _beside(folder, "old")
    with naming(folder):
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        for left in (part, old):
            shutil.rmtree(left, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
    try:
        yield part
        with naming(folder):
            for path in (*part.rglob("*"), part):
                _sync(path)
            if folder.exists():
                os.rename(folder, old)
            os.rename(part, folder)
            _sync(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def alone(place: Path) -> Iterator[None]:
    """Waits until no other process is in such a block for the same place, and keeps others waiting.

    Raises:
        OSError: the place's folder cannot be written to.

    >>> import tempfile, pathlib; from clearhead.files import alone
    >>> with alone(pathlib.Path(tempfile.mkdtemp()) / "all"): pass
    """
    path = _beside(place, "lock")
    with naming(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with naming(place):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _lock(handle, place)
        # the one that was waited for has removed the file: a lock on what has no name keeps nobody out
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                break
        os.close(handle)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextlib.contextmanager
def naming(place: Path) -> Iterator[None]:
    """Puts a place into errors of writing: that of a full disk names none.

    Raises:
        OSError: the one that came, with the place.

    >>> import pathlib; from clearhead.files import naming
    >>> with naming(pathlib.Path("all")): raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'all'
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(place)) from None


def _beside(place: Path, ending: str) -> Path:
    return place.with_name(f".{place.name}.{ending}")


def _lock(handle: int, place: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("%s is being made by another process; waiting for it", place)
        fcntl.flock(handle, fcntl.LOCK_EX)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mode(path: Path) -> int:
    """The permissions a newly opened file would have: mkstemp's own shut everybody else out."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
