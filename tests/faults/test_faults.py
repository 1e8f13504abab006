"""Commands that meet a failure or SIGKILL leave the old file or the new one, alone and with a second process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.cli.models.export import FormatOption
from faults import inject
from faults.__main__ import spread
from faults.check import EXCLUDED, is_complete
from faults.commands import FILES, FOLDERS

TWO_FAULTS = ("--fault", "SIGKILL", "--fault", "disk full")
LONG = {"benchmark generate", "benchmark train"}
"""Commands that take minutes here, and write their report as `benchmark encode` does; `python -m faults` has them."""
NAMES = [name for name in (*FILES, *FOLDERS) if name not in EXCLUDED | LONG]


def test_numbers_are_spread():
    assert spread(10, 3) == [2, 6, 9]
    assert spread(2, 3) == [1, 2]
    assert spread(40, 1) == [21]
    assert spread(5, 100) == [1, 2, 3, 4, 5]


def test_every_format_of_an_export_is_there():
    for name in FormatOption:
        assert any(f"--to {name.value}" in arguments for arguments, _ in FILES.values()), name


def test_incomplete_files_are_found(tmp_path):
    for name, content in (
        ("a.json", b'{"a": 1'),
        ("a.safetensors", b"\x08"),
        ("a.png", b"\x89PNG"),
        ("a.html", b"<p>"),
        ("a.npy", b"\x93NUMPY"),
        ("a.parquet", b"PAR1"),
        ("a.jsonl", b'{"a": 1}\n{"a"'),
        ("metrics.csv", b"step,loss\n1,2"),
    ):
        (tmp_path / name).write_bytes(content)
        assert not is_complete(tmp_path / name)


@pytest.mark.parametrize("fault", [fault for fault in inject.FAULTS if fault.number])
def test_the_library_injects(tmp_path, fault):
    library = inject.compile_library(tmp_path)
    if library is None:
        pytest.skip("faults are injected on Linux with a C compiler only")
    script = """
import os, sys
from clearhead.cli.models.export import FormatOption
from faults import inject
fault = next(fault for fault in inject.FAULTS if fault.name == sys.argv[2])
inject.arm(sys.argv[1] + "/in", sys.argv[1] + "/calls", 2, fault, False)
with open(sys.argv[1] + "/out", "wb") as file: file.write(b"a")
file = os.open(sys.argv[1] + "/in/a", os.O_WRONLY | os.O_CREAT)
os.write(file, b"a"); os.write(file, b"b"); os.write(file, b"c")
"""
    (tmp_path / "in").mkdir()
    environment = os.environ | {"LD_PRELOAD": str(library), inject.LIBRARY: str(library)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), fault.name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if fault.name == "EINTR":  # Python repeats the call
        assert (done.returncode, (tmp_path / "in" / "a").read_bytes()) == (0, b"abc")
    elif fault.name == "read-only":
        assert (done.returncode, (tmp_path / "in" / "a").read_bytes()) == (1, b"a")
    else:
        assert (tmp_path / "in" / "a").read_bytes() == b"a"
        assert os.strerror(fault.number) in done.stderr


@pytest.mark.slow
def test_damaged_commands_are_found(tmp_path):
    if inject.compile_library(tmp_path) is None:
        pytest.skip("faults are injected on Linux with a C compiler only")
    command = [sys.executable, "-m", "faults.damaged"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert "is neither the old nor the new file" in found["write_in_place"]
    assert "before an fsync" in found["forget_fsync"]
    assert "left: " in found["leave_temporary_files"]
    assert "a new run with ['--resume'] failed" in found["change_the_resume_file"]


# several commands in one process: its start takes longer than the faults of one
@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "faults"), [(("classify",), ()), *((NAMES[first::6], TWO_FAULTS) for first in range(6))]
)
def test_commands_leave_the_old_or_the_new_file(names, faults, tmp_path):
    if inject.compile_library(tmp_path) is None:
        pytest.skip("faults are injected on Linux with a C compiler only")
    command = [sys.executable, "-m", "faults", *names, "--calls", "1", *faults]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert all(f"| `{name}` |" in done.stdout for name in names)
