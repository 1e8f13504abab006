"""Systems without file locks, resource limits, glibc or the compiled kernels: a message, and the same results."""

import errno
import json
import math
import os
import platform
import subprocess
import sys

import pytest
from support.command import clearhead

from clearhead.benchmark import hardware
from clearhead.benchmark.report import table, write_report
from clearhead.benchmark.runner import Measurements
from clearhead.io.folders import atomic_folder
from clearhead.io.locks import _is_alive
from clearhead.kernels.native.build import build
from clearhead.runtime.process import trim_memory, tune_process

ELSEWHERE = """
import os, sys
for module in ("fcntl", "resource"):
    sys.modules[module] = None  # its import fails
for name in ("sched_getaffinity", "O_NOFOLLOW"):
    if hasattr(os, name):
        delattr(os, name)
from clearhead.cli.main import main
main()
"""


def elsewhere(*arguments):
    """Run the command line as on a system without POSIX modules."""
    command = [sys.executable, "-c", ELSEWHERE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_commands_work_without_file_locks_and_resource_limits(tiny_bert, tmp_path):
    (tmp_path / "texts.txt").write_text("hello world\nthe old bridge\n", encoding="utf-8")
    arguments = ["encode", tmp_path / "texts.txt", "-m", tiny_bert, "--precision", "float32", "-o"]
    done = elsewhere(*arguments, tmp_path / "there.npy")
    assert done.returncode == 0, done.stderr
    assert "this system has no file locks: do not start a second process" in done.stderr
    assert clearhead(*arguments, tmp_path / "here.npy")[0] == 0
    assert (tmp_path / "there.npy").read_bytes() == (tmp_path / "here.npy").read_bytes()


def test_folders_are_written_without_file_locks(tmp_path):
    (tmp_path / "texts.txt").write_text("hello world\nthe old bridge\n", encoding="utf-8")
    done = elsewhere("tokenizer", "train", tmp_path / "texts.txt", "--vocab-size", 300, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_folders_are_written_where_folders_cannot_be_opened(tmp_path, monkeypatch):
    open_file = os.open

    def refuse_folders(path, *arguments, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse_folders)
    monkeypatch.setattr(sys, "platform", "win32")
    with atomic_folder(tmp_path / "out") as part:
        (part / "a.txt").write_text("a")
    monkeypatch.undo()
    assert (tmp_path / "out" / "a.txt").read_text() == "a"


def test_a_process_gets_no_signal_where_the_test_for_it_would_stop_it(monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(sys, "platform", "win32")
    assert _is_alive(1)


def test_benchmark_shows_no_memory_where_the_system_does_not_say_it(monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "_read", lambda path: "")
    monkeypatch.setitem(sys.modules, "resource", None)
    memory = hardware.peak_memory()
    assert math.isnan(memory)
    measured = Measurements("clearhead", [1.0], 1.0, 1.0, 1.0, 1.0, memory, memory)
    assert table([measured], "tokens/s")[1].endswith("       –")
    write_report(tmp_path / "report.json", [measured], {})
    assert json.loads((tmp_path / "report.json").read_text())["figures"][0]["peak_mib"] is None


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_parts_for_linux_do_nothing_or_say_why(system, monkeypatch, caplog):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("ctypes.CDLL", None)
    caplog.set_level("INFO")
    tune_process.__wrapped__()
    trim_memory()
    assert "this system has no mallopt" in caplog.text
    monkeypatch.setattr("clearhead.kernels.native.build.LIBRARY", type("NoFile", (), {"unlink": lambda *_, **__: None}))
    assert build() == f"there are kernels for Linux on x86-64 only, and this is {system} on {platform.machine()}"
