"""Every command that writes files rejects an output that another process is writing, before it reads its input."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import typer
from faults.commands import FILES, FOLDERS, READERS, prepare, words
from support import forks
from support.command import clearhead, refused

from clearhead.cli.main import app
from clearhead.io.locks import LOCK_NAME, folder_lock, writer_lock


def commands(group, before=""):
    for command in group.registered_commands:
        yield f"{before}{command.name or command.callback.__name__.replace('_', '-')}"
    for inner in group.registered_groups:
        yield from commands(inner.typer_instance, f"{before}{inner.name} ")


def test_every_command_is_listed_here():
    assert isinstance(app, typer.Typer)
    writers = {name.partition(" -")[0] for name in (*FILES, *FOLDERS)}
    assert writers | READERS == set(commands(app))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-writer")
    prepare(folder)
    return folder


def slow(name):
    """Return the mark of a command that computes a result before it locks its output."""
    return pytest.mark.slow if name == "verify --against" else ()


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow(name)) for name in (*FILES, *FOLDERS)])
def test_locked_output_is_rejected(folder, name):
    output = folder / {**FILES, **FOLDERS}[name][1]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with (folder_lock if name in FOLDERS else writer_lock)(output):
        status, out, error = clearhead(*words(name, folder, folder / "out"))
    assert (status, error.count("\n")) == (1, 1)
    assert out == "" or name == "verify --against", "it prints the result before it is recorded"
    assert f"{output} is being written by process {os.getpid()} since" in error
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }


WHOLE_FOLDERS = ["export", *FOLDERS]


def stop_when_locked():
    """Stop this process as soon as it holds its first lock."""
    from clearhead.io import locks

    write = locks._write_holder

    def stop(*arguments):
        write(*arguments)
        os.kill(os.getpid(), signal.SIGSTOP)

    locks._write_holder = stop


def holder(output):
    for path in (output.with_name(f".{output.name}.lock"), output / LOCK_NAME):
        if path.exists() and path.read_text():
            return json.loads(path.read_text())["pid"]
    return None


@pytest.mark.slow
@pytest.mark.parametrize("first", WHOLE_FOLDERS)
@pytest.mark.parametrize("existing", [False, True])
def test_commands_of_every_pair_exclude_each_other(folder, tmp_path, first, existing):
    output = tmp_path / "whole"
    if existing:
        output.mkdir()
    process = forks.start(*words(first, folder, output), log=tmp_path / "log", hook=stop_when_locked)
    try:
        deadline = time.monotonic() + 60
        while holder(output) != process.pid:
            assert process.is_alive(), (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for second in WHOLE_FOLDERS:
            error = refused(*words(second, folder, output))
            assert f"{output} is being written by process {process.pid} since" in error, (second, error)
        assert holder(output) == process.pid
    finally:
        process.kill()
        process.join()


@pytest.mark.slow
def test_export_keeps_files_of_other_processes(folder, tmp_path):
    output = tmp_path / "out"
    export = words("export", folder, output)
    assert forks.run(*export, log=tmp_path / "log")[0] == 0
    with folder_lock(output / "run"):
        error = refused(*export)
    assert f"{output / 'run'} is being written by process {os.getpid()} since" in error
    assert forks.run(*export, log=tmp_path / "log")[0] == 0
    for command in (words("train", folder, output / "run"), words("tokenizer train", folder, output / "run")):
        begun = forks.start(*export, log=tmp_path / "log", hook=stop_before_rename)
        while not (tmp_path / ".out.part" / "config.json").exists() or not stopped(begun):
            time.sleep(0.02)
        status, log = forks.run(*command, log=tmp_path / "other")
        assert status == 0, log
        os.kill(begun.pid, signal.SIGCONT)
        begun.join(60)
        assert begun.exitcode == 1
        assert "contains files that no export wrote (run/" in (tmp_path / "log").read_text()
        assert list((output / "run").iterdir())
        shutil.rmtree(output / "run")


def stop_before_rename():
    """Stop this process when its folder is complete, before it is checked and renamed."""
    from clearhead.export import output

    write = output.write_json

    def stop(path, data):
        write(path, data)
        os.kill(os.getpid(), signal.SIGSTOP)

    output.write_json = stop


def stopped(process):
    return ") T " in Path(f"/proc/{process.pid}/stat").read_text()
