"""Write folders atomically."""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from clearhead.io.atomic import error_path, hidden_sibling
from clearhead.io.json import path_text


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

    >>> import tempfile, pathlib; from clearhead.io.folders import atomic_folder
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "all"
    >>> with atomic_folder(folder) as part: _ = (part / "a.txt").write_text("of it")
    """
    folder = follow_link(folder)
    part = hidden_sibling(folder, "part")
    with error_path(folder):
        restore_folder(folder)
        check_no_link(part)
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


def check_utf8(path: Path, reader: str, fix: str = "rename the folder") -> None:
    """Check that a path is UTF-8.

    Args:
        path: the path.
        reader: what needs this, for the message.
        fix: what to do.

    Raises:
        ValueError: it has other bytes.
    """
    if path_text(path) != str(path):
        raise ValueError(f"{path}: the path is not UTF-8, which {reader} needs; {fix}")


def check_no_link(part: Path) -> None:
    """Check that the hidden folder of a writer is not a link or a file, which it must neither follow nor remove.

    Raises:
        ValueError: it is.

    >>> import pathlib; from clearhead.io.folders import check_no_link
    >>> check_no_link(pathlib.Path(".new.part"))
    """
    if part.is_symlink() or (part.exists() and not part.is_dir()):
        raise ValueError(f"{part} is a link or a file in the place of a new folder; remove it")


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

    >>> import pathlib, tempfile; from clearhead.io.folders import sync_folder
    >>> sync_folder(pathlib.Path(tempfile.mkdtemp()))
    """
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def follow_link(path: Path) -> Path:
    """Return the target of a symbolic link, and any other path unchanged.

    Raises:
        OSError: the link leads to itself.

    >>> import pathlib; from clearhead.io.folders import follow_link
    >>> follow_link(pathlib.Path("all")).name
    'all'
    """
    try:
        target = path.resolve() if path.is_symlink() else path
        if not target.is_symlink():
            return target
    except (OSError, RuntimeError):  # a circle of links before Python 3.13, which returns a link
        pass
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


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

    >>> import pathlib; from clearhead.io.folders import is_renamed
    >>> is_renamed(pathlib.Path("all"))
    False
    """
    return hidden_sibling(folder, "old").exists() and not folder.exists()


def restore_folder(folder: Path) -> None:
    """Complete two renames of `replace_folder` between or after which the process was killed. Hold the folder's lock.

    Without the new folder, the earlier one gets its name back. Otherwise it is removed.

    >>> import pathlib, tempfile; from clearhead.io.folders import restore_folder
    >>> restore_folder(pathlib.Path(tempfile.mkdtemp()) / "all")
    """
    old = hidden_sibling(folder, "old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        os.rename(old, folder)


def _sync(path: Path) -> None:
    if sys.platform == "win32":  # it opens no folder, and syncs only files that are open for writing
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
