"""One writer per output, however the writers end."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clearhead.io import locks
from clearhead.io.locks import LOCK_NAME, OutputBusyError, folder_lock, writer_lock

HOLD = """
import sys, time, pathlib
from clearhead.io.locks import folder_lock, writer_lock
lock = folder_lock if sys.argv[2] == "folder" else writer_lock
with lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
COUNT = """
import math, sys, pathlib
from clearhead.io.locks import writer_lock
path = pathlib.Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with writer_lock(path, wait=math.inf):
        path.write_text(str(int(path.read_text()) + 1))
"""


def holding(output, kind="file"):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(output), kind], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    return process


@pytest.mark.parametrize(("lock", "kind"), [(writer_lock, "file"), (folder_lock, "folder")])
def test_second_process_is_refused_with_the_holder(tmp_path, lock, kind):
    output = tmp_path / "out"
    with holding(output, kind) as process:
        with pytest.raises(OutputBusyError) as refusal, lock(output):
            pass
        assert str(refusal.value).startswith(f"{output} is being written by process {process.pid} since 20")
        assert str(refusal.value).endswith("; wait until it ends, or give another output")
        process.send_signal(signal.SIGSTOP)  # a stopped process still holds its lock
        with pytest.raises(OutputBusyError, match=f"process {process.pid}"), lock(output):
            pass
        process.kill()
    with lock(output):  # the system has released the lock of the killed process
        pass
    assert os.listdir(tmp_path) == (["out"] if kind == "folder" else [])


@pytest.mark.slow
def test_no_update_is_lost_with_many_processes(tmp_path):
    path = tmp_path / "count"
    path.write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, str(path), "100"]) for _ in range(6)]
    assert [process.wait(timeout=120) for process in processes] == [0] * 6
    assert path.read_text() == "600"
    assert os.listdir(tmp_path) == ["count"]


def test_threads_of_one_process_exclude_each_other(tmp_path):
    inside, most = 0, 0

    def enter():
        nonlocal inside, most
        for _ in range(20):
            with writer_lock(tmp_path / "out", wait=math.inf):
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1


def test_writer_waits_for_the_given_time(tmp_path):
    done = threading.Event()

    def hold():
        with writer_lock(tmp_path / "out"):
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    while not (tmp_path / ".out.lock").exists():
        time.sleep(0.01)
    start = time.monotonic()
    with pytest.raises(OutputBusyError), writer_lock(tmp_path / "out", wait=0.3):
        pass
    assert time.monotonic() - start >= 0.3
    threading.Timer(0.2, done.set).start()
    with writer_lock(tmp_path / "out", wait=60.0):
        assert done.is_set()
    thread.join(60)


def test_all_paths_of_a_folder_share_one_lock(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for lock, name in ((writer_lock, "real/v.npy"), (folder_lock, "real")):
        with lock(tmp_path / name), pytest.raises(OutputBusyError), lock(tmp_path / name.replace("real", "link")):
            pass


@pytest.mark.slow
def test_killed_process_is_not_named(tmp_path):
    with holding(tmp_path / "out") as process:
        process.kill()
    assert json.loads((tmp_path / ".out.lock").read_text())["pid"] == process.pid
    locked = threading.Event()

    def hold():  # as in the moment between the lock and the name
        import fcntl

        with (tmp_path / ".out.lock").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            locked.set()
            time.sleep(2)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(60)
    with pytest.raises(OutputBusyError, match="being written by another process;"), writer_lock(tmp_path / "out"):
        pass
    thread.join(60)


def test_file_lock_and_a_folder_lock_of_one_folder_exclude_each_other(tmp_path):
    for first, second in ((writer_lock, folder_lock), (folder_lock, writer_lock)):
        with first(tmp_path / "out"), pytest.raises(OutputBusyError), second(tmp_path / "out"):
            pass


def test_lock_inside_a_folder_with_read_only_parent(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    acquire = locks._acquire

    def read_only(path, output, wait):
        if path.parent == tmp_path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(output))
        return acquire(path, output, wait)

    with holding(tmp_path / "out") as process:  # of a process that can write to the parent
        monkeypatch.setattr(locks, "_acquire", read_only)
        with pytest.raises(OutputBusyError, match=f"process {process.pid}"), folder_lock(tmp_path / "out"):
            pass
        process.kill()
    with folder_lock(tmp_path / "out"), pytest.raises(OutputBusyError), folder_lock(tmp_path / "out"):
        pass


def test_lock_of_a_replaced_folder_is_kept(tmp_path):
    with folder_lock(tmp_path / "out"):
        (tmp_path / "out").rename(tmp_path / "old")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / LOCK_NAME).write_text("of another process")
    assert (tmp_path / "out" / LOCK_NAME).exists()


def test_empty_created_folder_is_removed(tmp_path):
    with folder_lock(tmp_path / "run"):
        assert os.listdir(tmp_path / "run") == [LOCK_NAME]
    assert os.listdir(tmp_path) == []
    (tmp_path / "run").mkdir()
    with folder_lock(tmp_path / "run"):
        pass
    assert os.listdir(tmp_path) == ["run"]


def test_unwritable_path_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for lock in (writer_lock, folder_lock):
        with pytest.raises(OSError, match=r"file/out|file'") as error, lock(tmp_path / "file" / "out"):
            pass
        assert str(tmp_path / "file") in str(error.value)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_lock_that_is_no_regular_file(tmp_path, make):
    for path, lock in (
        (tmp_path / ".v.npy.lock", lambda: writer_lock(tmp_path / "v.npy")),
        (tmp_path / ".clearhead.lock", lambda: folder_lock(tmp_path)),
    ):
        make(path)
        with pytest.raises(ValueError, match="a lock is a regular file; remove it") as caught, lock():
            pass
        assert str(path) in str(caught.value)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("lock", [writer_lock, folder_lock])
def test_full_disk_names_the_output_and_leaves_no_lock(tmp_path, monkeypatch, lock):
    def write(handle, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left on device") as caught, lock(tmp_path / "out"):
        pass
    assert caught.value.filename == str(tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_lock_file_of_another_user(tmp_path, monkeypatch):
    """Its mode is 0o644: this user can lock and remove it, but not write it."""
    output, lock_file = tmp_path / "out", tmp_path / ".out.lock"
    opened = os.open

    def open_as_another_user(path, flags, *mode):
        if path == lock_file and lock_file.exists() and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *mode)

    with holding(output) as process:
        monkeypatch.setattr(os, "open", open_as_another_user)
        for lock in (writer_lock, folder_lock):
            with pytest.raises(OutputBusyError, match=f"process {process.pid} since"), lock(output):
                pass
        process.kill()
    assert lock_file.exists()
    with writer_lock(output):  # the killed process does not keep this user from writing
        assert json.loads(lock_file.read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_interrupt_while_locking_leaves_no_file(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(locks, "_write_holder", interrupt)
    with pytest.raises(KeyboardInterrupt), writer_lock(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path) == []
