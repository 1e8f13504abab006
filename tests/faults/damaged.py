"""Check that the checker finds damaged commands: `python -m faults.damaged`.

Each damage changes a function that writes files in the process of the command. Prints what the checker found.
"""

import functools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from clearhead.corpus import encode
from faults import inject
from faults.check import Checker
from faults.commands import prepare


def write_in_place() -> None:
    """Write to the file itself instead of a temporary one."""

    def open_itself(dir: Path, prefix: str, suffix: str) -> tuple[int, str]:
        path = Path(dir) / prefix.strip(".")
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), str(path)

    tempfile.mkstemp = open_itself


def forget_fsync() -> None:
    """Rename files that are not on the disk."""
    os.fsync = lambda file: None


def leave_temporary_files() -> None:
    """Remove no file."""
    os.unlink = lambda *arguments, **options: None


def change_the_resume_file() -> None:
    """Write a resume file that the next process cannot read."""
    encode._FORMAT = 99


DAMAGES = {
    write_in_place: "classify",
    forget_fsync: "classify",
    leave_temporary_files: "classify",
    change_the_resume_file: "encode",
}
"""Each damage, and a command that it damages."""


class Damaged(Checker):
    """A checker of a damaged command."""

    damage: Callable[[], None]

    def _hook(self, *arguments):
        return functools.partial(_both, type(self).damage, super()._hook(*arguments))


def _both(damage: Callable[[], None], hook: Callable[[], None]) -> None:
    damage()
    hook()


def main() -> int:
    """Run the command with each damage and each fault at each call; return the exit status."""
    found = []
    if inject.LIBRARY not in os.environ:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            return inject.run_with_library(Path(folder), "faults.damaged")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        originals, workspace = Path(folder) / "originals", Path(folder) / "work"
        for path in (originals, workspace):
            path.mkdir()
        prepare(originals)
        for damage, name in DAMAGES.items():
            checker = type(Damaged.__name__, (Damaged,), {"damage": staticmethod(damage)})
            message = _first_finding(checker, name, originals, workspace)
            sys.stdout.write(f"{damage.__name__}: {message}\n")
            found.append(message is not None)
    return 0 if all(found) else 1


def _first_finding(checker: type[Checker], name: str, originals: Path, workspace: Path) -> str | None:
    try:
        checks = checker(name, originals, workspace)
        for fault in inject.FAULTS:
            for number in checks.reference.record.calls_of(fault):
                checks.check(fault, number, second=False)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return None


if __name__ == "__main__":
    sys.exit(main())
