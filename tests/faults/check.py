"""Run a command with a fault, and check its files."""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet
from safetensors import SafetensorError
from safetensors.torch import load_file
from support import forks

from faults import inject
from faults.commands import FOLDERS, PREVIOUS, previous_words, words
from faults.inject import NONE, SIGKILL, Fault, Record

EXCLUDED = {"encode --engine ray"}
"""Commands whose files are written by processes of a cluster, which the library is not loaded into."""
CACHING = {"search --approximate"}
"""Commands that write files only if they are missing: a second process may use complete ones."""
OPTIONAL = {"verify --against"}
"""Commands that write no file where they may not, such as on a read-only disk."""
RESUMABLE = ("encode", "index", "train", "distill", "ablate")
"""Commands that leave an unfinished output if they fail, with which --resume continues."""
REPEATED = {"index --overwrite"}
"""Commands of RESUMABLE that start from the beginning, because --resume contradicts one of their options."""
VOLATILE = {"certificate.json", "comparisons.jsonl", "out.json", "out.png"}
"""Files with times or measurements, which differ between two runs."""
BUSY = "is being written by"
SECONDS = 300.0


@dataclass
class Reference:
    """The outcome of a command without a fault.

    Args:
        before: contents of all visible files before.
        after: and after it.
        volatile: files that differ between two runs, such as those with times.
        record: the calls that change files.
    """

    before: dict[str, bytes]
    after: dict[str, bytes]
    volatile: set[str] = field(default_factory=set)
    record: Record = field(default_factory=lambda: Record(b"", [], 0))


class Checker:
    """Check one command under faults.

    Args:
        name: its name in the table of commands.
        originals: the folder of `commands.prepare`.
        workspace: an empty folder.
    """

    def __init__(self, name: str, originals: Path, workspace: Path) -> None:
        self.name, self.originals, self.workspace = name, originals, workspace
        self.folder, self.record_file = workspace / "run", workspace / "calls"
        self._write_previous()
        self.reference = self._refer()

    def _write_previous(self) -> None:
        """Write an earlier output, or an interrupted run that the command resumes."""
        if self.name not in PREVIOUS and not self.name.endswith("--resume"):
            return
        self._reset()
        if self.name in PREVIOUS:
            words_before = previous_words(self.name, self.folder, self.folder / "out")
            status, log = forks.run(*words_before, log=self.workspace / "previous")
            assert status == 0, (self.name, log)
        else:
            assert self._run(NONE, 0)[0] == 0
            middle = len(Record.read(self.record_file).kinds) // 2
            self._reset()
            assert self._run(SIGKILL, middle)[0] == -signal.SIGKILL
        self.originals = self.workspace / "originals"
        shutil.rmtree(self.originals, ignore_errors=True)
        self.folder.rename(self.originals)

    def _refer(self) -> Reference:
        runs = []
        for _ in range(2):
            before = self._reset()
            status, log = self._run(NONE, 0)
            assert status == 0, (self.name, log)
            runs.append(contents(self.folder))
        volatile = {path for path in {*runs[0], *runs[1]} if runs[0].get(path) != runs[1].get(path)}
        assert {Path(path).name for path in volatile} <= VOLATILE, f"two runs differ: {volatile}"
        record = Record.read(self.record_file)
        assert not record.unsynced(), f"got its name before an fsync: {record.unsynced()}"
        return Reference(before, runs[0], volatile, record)

    def _reset(self) -> dict[str, bytes]:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.originals, self.folder)
        return contents(self.folder)

    def _words(self, *flags: str) -> list[str]:
        return [*words(self.name, self.folder, self.folder / "out"), *flags]

    def _start(self, fault: Fault, number: int, *, stop: bool = False):
        return forks.start(*self._words(), log=self.workspace / "log", hook=self._hook(fault, number, stop))

    def _hook(self, fault: Fault, number: int, stop: bool) -> Callable[[], None]:
        return functools.partial(inject.arm, str(self.folder), str(self.record_file), number, fault, stop)

    def _run(self, fault: Fault, number: int) -> tuple[int, str]:
        process = self._start(fault, number)
        return self._end(process)

    def _end(self, process) -> tuple[int, str]:
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"{self.name} did not end")
        return process.exitcode, (self.workspace / "log").read_text()

    def check(self, fault: Fault, number: int, *, second: bool) -> bool:
        """Run the command with a fault at a call; check the files, and that a new run completes them.

        Args:
            fault: the fault.
            number: the number of the call, from 1.
            second: whether a second process runs the command at the moment of the fault.

        Returns:
            Whether the fault happened.

        Raises:
            AssertionError: a file is neither the old nor the new one, or an error has several lines.
        """
        self._reset()
        process = self._start(fault, number, stop=second)
        stopped = second and self._check_second(process)
        status, log = self._end(process)
        happened = Record.read(self.record_file).num_faults > 0
        assert stopped or not (second and happened), "the command did not stop at the call"
        assert not (fault.name == "SIGKILL" and happened) or status == -signal.SIGKILL, log
        self._check_status(fault, status, log)
        if status == 1 and fault.name != "read-only" and self.name.split()[0] not in RESUMABLE:
            self._check_nothing_left()
        optional = fault.name == "read-only" and self.name in OPTIONAL
        complete = self._check_files(must_be_new=status == 0 and not optional)
        if not complete:
            self._check_new_run()
        return happened

    def _check_second(self, process) -> bool:
        """Run the command when the first process has stopped; return False if it did not stop."""
        deadline = time.monotonic() + SECONDS
        while process.is_alive() and not _is_stopped(process.pid):
            assert time.monotonic() < deadline, f"{self.name} did not reach the call"
            time.sleep(0.01)
        if not process.is_alive():
            return False
        status, log = forks.run(*self._words(), log=self.workspace / "second")
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        if self.name in CACHING and status == 0:
            now = contents(self.folder)
            assert all(now.get(path) == new for path, new in self.reference.after.items()), "used incomplete files"
            return True
        assert status == 1, f"the second process was not refused: {log}"
        assert BUSY in log, log
        return True

    def _check_status(self, fault: Fault, status: int, log: str) -> None:
        if fault.name == "SIGKILL":
            assert status in (0, -signal.SIGKILL), log
        elif status != 0:
            line = log.splitlines()[-1] if log.strip() else ""
            assert status == 1, (status, log)
            assert line.startswith("clearhead: error: "), log
            assert str(self.folder) in line, f"the error names no file: {line}"
        assert "Traceback" not in log, log

    def _check_files(self, *, must_be_new: bool) -> bool:
        """Check each visible file; return whether the output is complete."""
        now, reference = contents(self.folder), self.reference
        changed = 0
        for path in {*now, *reference.before, *reference.after}:
            new, old = reference.after.get(path), reference.before.get(path)
            if now.get(path) == new:
                continue
            changed += 1
            if path not in now:
                # weights that were written directly before a kill, so that no state lists them; they are computed again
                orphan = self.name.endswith("--resume") and "/checkpoints/step-" in path
                assert orphan or old is None, f"{path} was lost"
            elif now[path] != old:
                known = path in reference.volatile or self._is_progress(path, now[path], old)
                assert known, f"{path} is neither the old nor the new file"
                assert is_complete(self.folder / path), f"{path} is not complete"
                changed -= path in reference.volatile
        assert not (must_be_new and changed), f"the command reported success without its files: {self.folder}"
        replaced = {path for path in reference.before if reference.after.get(path) != reference.before[path]}
        if self.name in PREVIOUS and changed:
            assert all(now.get(path) == reference.before[path] for path in replaced), (
                "files of the old and the new folder"
            )
        return changed == 0

    def _is_progress(self, path: str, content: bytes, old: bytes | None) -> bool:
        """Return whether a file may have other contents until a run is complete.

        A run fills its folder file by file. An index appends rows, which do not exist until index.json counts them.
        """
        if self.name.startswith("index --append"):
            if path.endswith(("index.json", "pending.json")):
                return path.endswith("pending.json")
            old = old or b""
            size = min(len(content), len(old)) if self.name.endswith("--resume") else len(old)  # uncounted rows are cut
            return content[:size] == old[:size]
        return self.name in FOLDERS

    def _check_new_run(self) -> None:
        """Check that the command can be repeated or resumed, and then gives the same files."""
        flags = ["--resume"] if self.name.split()[0] in RESUMABLE and self.name not in REPEATED else []
        status, log = forks.run(*self._words(*flags), log=self.workspace / "again")
        assert status == 0, f"a new run with {flags} failed: {log}"
        now = contents(self.folder)
        for path, new in self.reference.after.items():
            assert path in self.reference.volatile or now.get(path) == new, f"{path} differs after a new run"
        self._check_nothing_left()

    def _check_nothing_left(self) -> None:
        hidden = [path for path in self.folder.rglob(".*") if re.search(r"\.(part|old|lock)$", path.name)]
        assert not hidden, f"left: {hidden}"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all visible files below a folder, by path."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    relative = ((path, path.relative_to(folder)) for path in paths)
    return {
        str(name): _without_speed(path.read_bytes()) if name.name == "metrics.csv" else path.read_bytes()
        for path, name in relative
        if not any(part.startswith(".") for part in name.parts) and "tfevents" not in name.name
    }


def _without_speed(metrics: bytes) -> bytes:
    """Return the rows of metrics.csv without the column of the speed, which differs between two runs."""
    rows = [line.split(b",") for line in metrics.splitlines(keepends=True)]
    column = rows[0].index(b"tokens_per_second") if rows and b"tokens_per_second" in rows[0] else None
    return b"".join(b",".join(cell for index, cell in enumerate(row) if index != column) for row in rows)


def is_complete(path: Path) -> bool:
    """Return whether a file of a format with an end is complete."""
    try:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".png":
            return path.read_bytes().endswith(b"IEND\xaeB`\x82")
        elif path.suffix == ".html":
            return path.read_text().rstrip().endswith("</html>")
        elif path.suffix == ".ckpt":
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
        elif path.suffix == ".npy":
            np.load(path)
        elif path.suffix == ".parquet":
            pyarrow.parquet.read_table(path)
        elif path.suffix == ".jsonl":
            return all(map(json.loads, path.read_text().splitlines())) and path.read_bytes().endswith(b"\n")
        elif path.suffix in (".yaml", ".txt", ".tsv", ".csv"):
            return path.read_bytes().endswith(b"\n")
    except (ValueError, SafetensorError, zipfile.BadZipFile):
        return False
    return True


def _is_stopped(process_id: int) -> bool:
    with contextlib.suppress(OSError):
        return ") T " in Path(f"/proc/{process_id}/stat").read_text()
    return False
