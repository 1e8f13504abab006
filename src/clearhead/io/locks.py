"""Lock an output file or folder, so that only one process writes it."""

import contextlib
import errno
import json
import logging
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from clearhead.io.atomic import error_path

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_HOLDER_SECONDS = 1.0
"""Seconds to wait until the holder of a lock has written its process id into the lock file."""


class OutputBusyError(ValueError):
    """Another process is writing the same output."""


@contextlib.contextmanager
def writer_lock(output: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Lock a file, or a folder that is replaced as a whole, until the block ends.

    Enter the block before reading the inputs of the result, and leave it after the last rename. The lock is a hidden
    file next to the output. For an existing folder there is a second one inside, as with `folder_lock`; it is the only
    one if the folder's parent is read-only. The operating system releases both when the process ends, even after
    SIGKILL.

    Args:
        output: the file or folder.
        wait: seconds to wait for another writer; `math.inf` waits until it has ended.

    Raises:
        OutputBusyError: another process still holds the lock after `wait` seconds; the message names the process.
        OSError: the folder of a file or of a new folder is not writable; the error names it.

    >>> import tempfile, pathlib; from clearhead.io.locks import writer_lock
    >>> with writer_lock(pathlib.Path(tempfile.mkdtemp()) / "vectors.npy"): pass
    """
    with contextlib.ExitStack() as locks:
        with _read_only_parent_allowed(output):
            locks.enter_context(_locked(_lock_path(output), output, wait))
        if output.is_dir():
            locks.enter_context(_locked(output.resolve() / LOCK_NAME, output, wait))
        yield


@contextlib.contextmanager
def folder_lock(folder: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Lock a folder whose files are written one by one, until the block ends.

    Unlike with `writer_lock`, the parent of the folder may be read-only: then the lock inside the folder is the only
    one. A folder that this function created is removed if it is empty at the end.

    Args:
        folder: the folder; it is created if it is missing.
        wait: as in `writer_lock`.

    >>> import tempfile, pathlib; from clearhead.io.locks import folder_lock
    >>> with folder_lock(pathlib.Path(tempfile.mkdtemp()) / "run"): pass
    """
    with contextlib.ExitStack() as locks:
        with _read_only_parent_allowed(folder):
            locks.enter_context(_locked(_lock_path(folder), folder, wait))
        if not folder.exists():
            locks.callback(_remove_empty, folder)
        _make_folder(folder)
        locks.enter_context(_locked(folder.resolve() / LOCK_NAME, folder, wait))
        yield


def check_unlocked(folder: Path) -> None:
    """Check that no process writes a file or folder below a folder.

    Args:
        folder: the folder.

    Raises:
        OutputBusyError: a process does; the message names it.

    >>> import tempfile, pathlib; from clearhead.io.locks import check_unlocked
    >>> check_unlocked(pathlib.Path(tempfile.mkdtemp()))
    """
    for path in folder.rglob(".*.lock"):
        if path == folder / LOCK_NAME:
            continue
        output = path.parent if path.name == LOCK_NAME else path.with_name(path.name[1:].removesuffix(".lock"))
        with contextlib.suppress(FileNotFoundError, PermissionError):
            handle, _ = _open(path)
            try:
                if not _try_lock(handle, output):
                    raise _busy(output, _read_holder(handle))
            finally:
                os.close(handle)


def remove_stale_lock(output: Path) -> None:
    """Remove the lock file next to an output if the process that locked it was killed after the last rename.

    Args:
        output: a complete file or folder that is not written again, so that no `writer_lock` would remove the file.

    >>> import tempfile, pathlib; from clearhead.io.locks import remove_stale_lock
    >>> remove_stale_lock(pathlib.Path(tempfile.mkdtemp()) / "vectors.npy")
    """
    with contextlib.suppress(OSError, OutputBusyError):  # a folder that is not writable, or a process that still writes
        if _lock_path(output).exists():
            with writer_lock(output):
                pass


@contextlib.contextmanager
def _read_only_parent_allowed(output: Path) -> Iterator[None]:
    """Ignore that the lock next to an existing folder cannot be made; the one inside is enough then."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not output.is_dir():
            raise


LOCK_NAME = ".clearhead.lock"
"""Name of the lock file inside a folder."""


def _lock_path(output: Path) -> Path:
    path = output.resolve() if output.is_dir() else output.parent.resolve() / output.name
    if not path.name:
        raise ValueError(f"the output is {path}; expected a file or folder in it")
    _make_folder(path.parent)
    return path.with_name(f".{path.name}.lock")


def _make_folder(folder: Path) -> None:
    try:
        with error_path(folder):
            folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def _locked(path: Path, output: Path, wait: float) -> Iterator[None]:
    handle = _acquire(path, output, wait)
    try:
        yield
    finally:
        _remove(handle, path)
        os.close(handle)


def _remove(handle: int, path: Path) -> None:
    """Remove a lock file that this process has locked.

    The user may have moved the folder, and a replacement may contain the lock of another process.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(handle), path.stat()):
            path.unlink()


def _acquire(path: Path, output: Path, wait: float) -> int:
    start, logged = time.monotonic(), False
    while True:
        with error_path(output):
            handle, is_own = _open(path, os.O_CREAT)
        is_locked = False
        try:
            if is_locked := _try_lock(handle, output):
                # the previous writer removed its lock file: a lock on a removed file excludes no process
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(handle), path.stat()):
                        if is_own:
                            _write_holder(handle, output)
                            return handle
                        with error_path(output):
                            path.unlink()
                waited, holder = 0.0, None
            else:
                waited, holder = time.monotonic() - start, _read_holder(handle)
        except BaseException:
            if is_locked:  # such as Ctrl-C before the block of `_locked`
                _remove(handle, path)
            os.close(handle)
            raise
        os.close(handle)
        if waited >= (wait if holder else max(wait, _HOLDER_SECONDS)):
            raise _busy(output, holder)
        if waited and wait and not logged:
            log.info("waiting for %s, which writes %s", holder or "another process", output)
            logged = True
        time.sleep(_POLL_SECONDS if waited else 0)


def _open(path: Path, create: int = 0) -> tuple[int, bool]:
    """Open a lock file, and return whether this process can write it: the file of another user can only be locked."""
    no_links = getattr(os, "O_NOFOLLOW", 0)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ValueError(f"{path} is a link, a folder or a device, but a lock is a regular file; remove it")
    try:
        return os.open(path, os.O_RDWR | create | no_links, 0o666), True
    except PermissionError:
        if not path.is_file():
            raise
        return os.open(path, os.O_RDONLY | no_links), False


def _busy(output: Path, holder: str | None) -> OutputBusyError:
    by = holder or "another process"
    return OutputBusyError(f"{output} is being written by {by}; wait until it ends, or give another output")


def _try_lock(handle: int, output: Path) -> bool:
    try:
        import fcntl
    except ImportError:
        log.warning("this system has no file locks: do not start a second process that writes %s", output)
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
        log.warning("this file system has no locks: do not start a second process that writes %s", output)
    return True


def _write_holder(handle: int, output: Path) -> None:
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with error_path(output):
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(holder).encode())


def _read_holder(handle: int) -> str | None:
    """Return a description of the process that holds a lock; None if it is not in the file yet."""
    try:
        holder = json.loads(os.read(handle, 4096))
        pid, host, since = int(holder["pid"]), str(holder["host"]), str(holder["since"])
    except (ValueError, TypeError, KeyError):
        return None
    is_local = host == socket.gethostname()
    if is_local and pid != os.getpid() and not _is_alive(pid):
        return None  # an earlier holder, which was killed
    return f"process {pid}{'' if is_local else f' on {host}'} since {since}"


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":  # os.kill(pid, 0) would send Ctrl+C there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
