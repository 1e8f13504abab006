"""What a shell or a system does to a command: signals, a deleted working directory, another encoding."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from support.command import COMMAND, started

pytestmark = pytest.mark.slow


def stopped(number, lock, *command, cwd):
    """Start a command, send it a signal when it holds a lock, and return its status and standard error."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": cwd}
    restore = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731  # a background job may ignore it
    with subprocess.Popen([COMMAND, *map(str, command)], preexec_fn=restore, **options) as process:
        deadline = time.monotonic() + 60
        while not (cwd / lock).exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        status = process.wait(timeout=60)
        return status, process.stderr.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_leave_no_temporary_file(tiny_bert, tmp_path, number):
    """The command waits for its input. SIGKILL is in the fault table; no process can clean up after it."""
    status, error = stopped(number, ".v.npy.lock", "encode", "-m", tiny_bert, "-o", "v.npy", cwd=tmp_path)
    assert status == 128 + number
    assert "Traceback" not in error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_many_signals_print_no_traceback(tiny_bert, tmp_path, number):
    """They arrive while the command imports its libraries, works or exits."""
    for seconds in (0.5, 2, 3.5, 5):
        command = [COMMAND, "export", tiny_bert, tmp_path / "out", "--to", "transformers"]
        with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE) as process:
            time.sleep(seconds)
            for _ in range(6):
                process.send_signal(number)
                time.sleep(0.005)
            _, error = process.communicate(timeout=60)
        assert b"Traceback" not in error, error.decode()
        assert process.returncode in (0, 128 + number, -number)


def test_second_ctrl_c_while_files_are_removed_leaves_none(tiny_bert, tmp_path):
    for pause in (0.0005, 0.002, 0.005, 0.01):
        command = [COMMAND, "export", tiny_bert, "out", "--to", "transformers"]
        restore = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
        with subprocess.Popen(
            list(map(str, command)), cwd=tmp_path, preexec_fn=restore, stderr=subprocess.PIPE
        ) as process:
            while not (tmp_path / ".out.part").exists() and process.poll() is None:
                time.sleep(0.002)
            time.sleep(0.05)
            for _ in range(3):
                process.send_signal(signal.SIGINT)
                time.sleep(pause)
            _, error = process.communicate(timeout=60)
        assert b"Traceback" not in error, error.decode()
        assert [path.name for path in tmp_path.iterdir()] in ([], ["out"])
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


DISCARDED = """
import os, time
from clearhead.cli.signals import orderly_exit

class Discarded:
    def __del__(self):
        os.kill(os.getpid(), {number})
        for _ in range(10_000):
            pass

with orderly_exit():
    Discarded()
    time.sleep(30)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
)
def test_signal_in_a_destructor_is_not_lost(number, status):
    """Python discards an exception there, and prints it."""
    done = subprocess.run([sys.executable, "-c", DISCARDED.format(number=int(number))], capture_output=True, timeout=25)
    assert done.returncode == status
    assert b"Exception ignored" not in done.stderr


def test_ctrl_c_during_the_imports_prints_nothing():
    code = (
        "import builtins\n"
        "original = builtins.__import__\n"
        "def slow(name, *others):\n"
        "    if name == 'clearhead.cli.main':\n"
        "        print('imports', flush=True)\n"
        "        import time; time.sleep(30)\n"
        "    return original(name, *others)\n"
        "builtins.__import__ = slow\n"
        "from clearhead.__main__ import main; main()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"imports\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (-signal.SIGINT, b"")


def test_sigterm_leaves_no_new_folder(tmp_path):
    words = "".join(f"word{number} and {number * 7919}\n" for number in range(100_000))
    (tmp_path / "words.txt").write_text(words)
    arguments = ("tokenizer", "train", "words.txt", "--vocab-size", 3000, "-o", "tokenizer")
    status, _ = stopped(signal.SIGTERM, "tokenizer/.clearhead.lock", *arguments, cwd=tmp_path)
    assert status == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == ["words.txt"]


def test_nohup_survives_the_end_of_its_terminal(tiny_bert, tmp_path):
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": tmp_path, "preexec_fn": ignore}
    command = [COMMAND, "encode", "-m", tiny_bert, "-o", "v.npy", "-q"]
    with subprocess.Popen(list(map(str, command)), **options) as process:
        while not (tmp_path / ".v.npy.lock").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
        process.communicate(b"hello\n", timeout=60)
        assert process.returncode == 0
    assert os.listdir(tmp_path) == ["v.npy"]


def test_deleted_working_directory(tmp_path):
    def leave():
        folder = tmp_path / "gone"
        folder.mkdir()
        os.chdir(folder)
        folder.rmdir()

    error = "clearhead: error: the working directory was deleted; change to another one\n"
    assert started("view", "hello", "-o", "report.html", preexec_fn=leave) == (1, "", error)


def test_redirected_output_is_utf8_in_every_environment(tiny_bert, monkeypatch):
    """Windows has an encoding of its own for pipes and files."""
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    status, out, error = started("trace", "hello", "-m", tiny_bert)
    assert status == 0, error
    assert "→" in out


def test_control_characters_of_a_file_name_are_visible(tmp_path):
    error = started("encode", tmp_path / "a\x1b[31m.csv", "-o", tmp_path / "v.npy")[2]
    assert "a\\x1b[31m.csv" in error
    assert error.count("\n") == 1
