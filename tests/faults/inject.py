"""Compile the library that injects faults, and arm it in a process."""

import ctypes
import errno
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "FAULTS_LIBRARY"
"""Environment variable with the path of the compiled library."""

_COUNT, _KILL, _FAIL, _FAIL_ONCE = range(4)
_WRITES, _SYNCS, _NAMES, _CREATIONS, _REMOVALS = 1, 2, 4, 8, 16
_CALLS, _NAME = 2**16, 512
"""Sizes of the library's record: number of calls, and bytes of a path."""


@dataclass(frozen=True)
class Fault:
    """A fault at one call that changes files.

    Args:
        name: its name in the table.
        mode: 0 to count calls, 1 for SIGKILL, 2 for an error from this call on, 3 for an error of this call only.
        number: the error number.
        calls: kinds of calls that fail.
    """

    name: str
    mode: int
    number: int = 0
    calls: int = _WRITES | _SYNCS | _NAMES


NONE = Fault("none", _COUNT)
SIGKILL = Fault("SIGKILL", _KILL)
FAULTS = [
    SIGKILL,
    Fault("disk full", _FAIL, errno.ENOSPC, _WRITES | _SYNCS),
    Fault("quota", _FAIL, errno.EDQUOT, _WRITES | _SYNCS),
    Fault("read-only", _FAIL, errno.EROFS, _WRITES | _NAMES | _CREATIONS | _REMOVALS),
    Fault("I/O error", _FAIL_ONCE, errno.EIO),
    Fault("EINTR", _FAIL_ONCE, errno.EINTR, _WRITES | _SYNCS),
]


def compile_library(folder: Path) -> Path | None:
    """Compile the library into a folder; return its path, or None without Linux or a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not Path("/proc/self/fd").is_dir():
        return None
    path = folder / "faults.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


def run_with_library(folder: Path, module: str, *words: str) -> int:
    """Run a module with the library in its processes; return its exit status.

    Args:
        folder: gets the library.
        module: name of the module.
        words: its arguments.
    """
    library = compile_library(folder)
    if library is None:
        raise SystemExit("faults are injected on Linux with a C compiler only")
    environment = os.environ | {"LD_PRELOAD": str(library), LIBRARY: str(library), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", module, *words], env=environment, check=False).returncode


@dataclass(frozen=True)
class Record:
    """What the library recorded of a command.

    Args:
        kinds: kind of each call.
        files: path of its file; of a rename, the path before.
        num_faults: number of faults that happened.
    """

    kinds: bytes
    files: list[str]
    num_faults: int

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Read the record that `arm` named."""
        with path.open("rb") as file:
            count, num_faults = struct.unpack("=2i", file.read(8))
            kinds = file.read(_CALLS)[1 : count + 1]
            files = file.read(_NAME * (count + 1))
        names = [files[start : start + _NAME] for start in range(_NAME, len(files), _NAME)]
        return cls(kinds, [os.fsdecode(name.partition(b"\0")[0]) for name in names], num_faults)

    def calls_of(self, fault: Fault) -> list[int]:
        """Return the numbers of the calls that a fault can hit, from 1."""
        return [
            number for number, kind in enumerate(self.kinds, 1) if fault.mode in (_COUNT, _KILL) or kind & fault.calls
        ]

    def unsynced(self) -> list[str]:
        """Return the files that were written, and not synced before they or a folder above them got their names."""
        written, found = set[str](), list[str]()
        for kind, file in zip(self.kinds, self.files, strict=True):
            if kind == _WRITES:
                written.add(file)
            elif kind == _SYNCS:
                written.discard(file)
            elif kind == _NAMES:
                found += [one for one in written if f"{one}/".startswith(f"{file}/")]
        return found


def arm(folder: str, record: str, number: int, fault: Fault, stop: bool) -> None:
    """Arm the library in this process.

    Args:
        folder: calls on files below it are counted and may fail.
        record: file that receives a `Record`.
        number: the call at which the fault happens, from 1.
        fault: the fault.
        stop: whether the process stops itself first.
    """
    library = ctypes.CDLL(os.environ[LIBRARY])
    paths = [os.fsencode(path) for path in (folder, record)]
    library.fault_arm(*paths, number, fault.mode, fault.number, fault.calls, int(stop))
