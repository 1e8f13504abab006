"""Write files and folders atomically."""

import contextlib
import ctypes
import errno
import glob
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any


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


def check_writable(path: Path) -> None:
    """Check that a file can be written, before computing its contents.

    Raises:
        ValueError: the path is a folder, a device or a pipe, or its folder is missing or not writable.

    >>> import tempfile, pathlib; from clearhead.io.atomic import check_writable
    >>> check_writable(pathlib.Path(tempfile.mkdtemp()) / "a.txt")
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or a pipe, which a file would replace; give a file")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path}: the folder {path.parent} is not writable")


def check_not_input(output: Path, inputs: Iterable[str | Path | None]) -> None:
    """Check that an output is not one of the inputs, or a file of a model or an index.

    Args:
        output: the file.
        inputs: the files that are read; None, "-" and missing files are skipped.

    Raises:
        ValueError: it is.

    >>> import pathlib; from clearhead.io.atomic import check_not_input
    >>> check_not_input(pathlib.Path("vectors.npy"), ["texts.txt"])
    """
    if any(source not in (None, "-") and _is_same(output, source) for source in inputs):
        raise ValueError(f"{output} is also an input and would be overwritten; give another output")
    is_own = output.name in _MODEL_NAMES or output.suffix in _MODEL_SUFFIXES
    for name in ("config.json", "index.json"):
        if is_own and output.is_file() and (output.parent / name).is_file():
            raise ValueError(f"{output} is part of a model or an index and would be overwritten; give another output")


_MODEL_NAMES = {
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "modules.json", "index.json", "documents.jsonl", "training.json"),
}
_MODEL_SUFFIXES = {".safetensors", ".bin", ".spm", ".model", ".usearch", ".float32", ".bfloat16", ".int8"}
"""Files of models and indexes, next to their config.json or index.json."""


def _is_same(path: Path, other: Any) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them is missing, or is a text in place of a path
        return False


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
def atomic_folder(folder: Path, check: Callable[[Path], None] = lambda folder: None) -> Iterator[Path]:
    """Create a folder that replaces `folder` only if the block ends without an error.

    The new folder has a hidden name in the same parent. It is synced, then renamed, and replaces an existing folder. On
    an error the new folder is removed and the existing one stays. After a killed process, the next call removes its
    hidden folder. Hold `locks.writer_lock` around the block: two processes must not write the same folder.

    Args:
        folder: the folder, or a symbolic link to it, which stays.
        check: raises an error for an existing folder that must not be replaced. It is called directly before the rename
            and again after it, when no other process can find the folder.

    Raises:
        OSError: the parent is not writable, or the disk is full.

    >>> import tempfile, pathlib; from clearhead.io.atomic import atomic_folder
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "all"
    >>> with atomic_folder(folder) as part: _ = (part / "a.txt").write_text("of it")
    """
    folder = follow_link(folder)
    part = hidden_sibling(folder, "part")
    with error_path(folder):
        restore_folder(folder)
        shutil.rmtree(part, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
    new = None
    try:
        yield part
        new = part.stat()  # after the block, because some libraries make the folder again
        replace_folder(part, folder, check)
    except BaseException as error:
        # after an exchange that cannot be undone, this is the name of the earlier folder
        if new is None or (part.exists() and os.path.samestat(part.stat(), new)):
            shutil.rmtree(part, ignore_errors=True)
        # the error of a full disk has no path
        if isinstance(error, OSError) and error.errno and Path(error.filename or part).is_relative_to(part):
            name = Path(error.filename or part).relative_to(part)
            raise OSError(error.errno, error.strerror, str(folder / name)) from None
        raise


def replace_folder(part: Path, folder: Path, check: Callable[[Path], None] = lambda folder: None) -> None:
    """Sync a complete folder to disk and rename it to `folder`, which it replaces. On an error both stay.

    On Linux, the two folders exchange their names in one step. Elsewhere it takes two renames, and a process that is
    killed between them leaves the earlier folder under a hidden name, for `restore_folder`.

    Args:
        part: the new folder, in the same parent.
        folder, check: as in `atomic_folder`.
    """
    with error_path(folder):
        sync_folder(part)
        if not folder.exists():
            os.rename(part, folder)
            _sync(folder.parent)
            return
        check(folder)
        os.chmod(part, stat.S_IMODE(folder.stat().st_mode))
        if _exchange(part, folder):
            replaced = part
            try:
                check(replaced)
                _sync(folder.parent)
            except BaseException:
                _exchange(part, folder)
                raise
        else:
            replaced = hidden_sibling(folder, "old")
            os.rename(folder, replaced)
            try:
                check(replaced)
                os.rename(part, folder)
            except BaseException:
                restore_folder(folder)
                raise
            _sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder and all files below it to disk.

    >>> import pathlib, tempfile; from clearhead.io.atomic import sync_folder
    >>> sync_folder(pathlib.Path(tempfile.mkdtemp()))
    """
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def follow_link(path: Path) -> Path:
    """Return the target of a symbolic link, and any other path as it is.

    Raises:
        OSError: the link leads to itself.

    >>> import pathlib; from clearhead.io.atomic import follow_link
    >>> follow_link(pathlib.Path("all")).name
    'all'
    """
    try:
        return path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError):  # links in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step, and return whether the system can."""
    if sys.platform != "linux" or (renameat2 := getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)) is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    if (number := ctypes.get_errno()) in (errno.EINVAL, errno.ENOSYS, errno.EXDEV):  # not on this file system
        return False
    raise OSError(number, os.strerror(number), str(other))


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Constants of Linux, from fcntl.h and stdio.h."""


def is_renamed(folder: Path) -> bool:
    """Return whether a process was killed between two renames of `replace_folder`.

    >>> import pathlib; from clearhead.io.atomic import is_renamed
    >>> is_renamed(pathlib.Path("all"))
    False
    """
    return hidden_sibling(folder, "old").exists() and not folder.exists()


def restore_folder(folder: Path) -> None:
    """Complete two renames of `replace_folder` between or after which the process was killed. Hold the folder's lock.

    Without the new folder, the earlier one gets its name back. Otherwise it is removed.

    >>> import pathlib, tempfile; from clearhead.io.atomic import restore_folder
    >>> restore_folder(pathlib.Path(tempfile.mkdtemp()) / "all")
    """
    old = hidden_sibling(folder, "old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        os.rename(old, folder)


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


class HashedFile:
    """Append-only file with the SHA-256 of its contents, so that a writer can resume after an interruption.

    Args:
        path: the file; it is created if it is missing.
        size: the number of bytes to keep; the rest is truncated.

    Raises:
        OSError: the file cannot be written; the error has its path.

    >>> import tempfile, pathlib; from clearhead.io.atomic import HashedFile, has_content
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.part"
    >>> file = HashedFile(path, 0); file.write(b"one"); has_content(path, file.sync(), file.sha256)
    True
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        with error_path(path):
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
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


def hidden_sibling(path: Path, suffix: str) -> Path:
    """Return the hidden path in the same folder that a writer of `path` uses."""
    return path.with_name(f".{path.name}.{suffix}")


def _sync(path: Path) -> None:
    if sys.platform == "win32":  # it opens no folder, and syncs only files that are open for writing
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mode(path: Path) -> int:
    """Return the permissions of a file opened normally; files of mkstemp are private."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
