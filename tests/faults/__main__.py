"""Fill the fault table: `python -m faults --calls 3`, or one command: `python -m faults encode --calls 10`.

Each command that writes runs with each fault, at calls spread over its writes, renames and fsyncs, alone and with a
second process. Prints the table and every forbidden outcome. The exit status is 1 if there is one.
"""

import argparse
import os
import sys
import tempfile
import traceback
from pathlib import Path

from faults import inject


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="COMMAND", help="default: all commands")
    parser.add_argument("--calls", type=int, default=3, help="calls at which each fault happens (default: 3)")
    parser.add_argument("--fault", action="append", help="only these faults")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        if inject.LIBRARY not in os.environ:
            return inject.run_with_library(Path(folder), "faults", *sys.argv[1:])
        return _fill(Path(folder), arguments.names, arguments.calls, arguments.fault)


def _fill(folder: Path, names: list[str], calls: int, only: list[str] | None) -> int:
    from faults.check import EXCLUDED, Checker
    from faults.commands import FILES, FOLDERS, prepare

    originals = folder / "originals"
    originals.mkdir()
    prepare(originals)
    faults = [fault for fault in inject.FAULTS if not only or fault.name in only]
    _say("| command | calls | " + " | ".join(fault.name for fault in faults) + " |")
    num_failed = 0
    for name in names or [name for name in (*FILES, *FOLDERS) if name not in EXCLUDED]:
        (folder / "work").mkdir(exist_ok=True)
        try:
            checker = Checker(name, originals, folder / "work")
        except AssertionError as error:
            num_failed += 1
            sys.stderr.write(f"FORBIDDEN: {name} without a fault: {error}\n")
            continue
        cells = []
        for fault in faults:
            counts = {}
            chosen = checker.reference.record.calls_of(fault)
            for second in (False, True):
                done = 0
                for index in spread(len(chosen), calls):
                    number = chosen[index - 1]
                    try:
                        done += checker.check(fault, number, second=second)
                    except AssertionError as error:
                        num_failed += 1
                        sys.stderr.write(f"FORBIDDEN: {name}, {fault.name} at call {number}, second={second}\n")
                        sys.stderr.write(f"  {str(error)[:1500]}\n{traceback.format_exc(limit=-1)[:300]}\n")
                counts[second] = done
                if not done:
                    num_failed += 1
                    sys.stderr.write(f"FORBIDDEN: {name}, {fault.name}: the fault never happened\n")
            cells.append(f"{counts[False]} + {counts[True]}")
        _say(f"| `{name}` | {len(checker.reference.record.kinds)} | " + " | ".join(cells) + " |")
    return int(num_failed > 0)


def spread(total: int, count: int) -> list[int]:
    """Return numbers from 1 to a total, each in the middle of its part: the first and the last calls concern a lock.

    >>> spread(10, 3)
    [2, 6, 9]
    """
    return sorted({1 + int((index + 0.5) * total / count) for index in range(count)})


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
