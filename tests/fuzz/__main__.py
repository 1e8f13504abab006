"""Fuzz for some minutes: `python -m fuzz checkpoints --minutes 10 --seed 0`.

Prints the counts, and each forbidden outcome with the command that reproduces it. The exit status is 1 if there is one.
"""

import argparse
import collections
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from fuzz.outcomes import REFUSED, WORKS
from fuzz.run import TARGETS, prepare, run_case, work

STUCK_SECONDS, PREPARATION_SECONDS = 120.0, 900.0
"""Seconds without a sign of life after which a worker process is killed: during the cases, and before them."""


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=1.0, help="duration (default: 1)")
    length.add_argument("--cases", type=int, help="number of cases, in place of a duration")
    length.add_argument("--case", type=int, help="run this case only, and print what it does")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        if arguments.case is not None:
            prepare(arguments.target, Path(folder))
            change, outcome, message = run_case(arguments.target, Path(folder), arguments.seed, arguments.case)
            sys.stdout.write(f"{change}\n{outcome}\n{message}\n")
            return int(outcome not in (WORKS, REFUSED))
        stop = time.monotonic() + 60 * (10**6 if arguments.cases else arguments.minutes)
        return _report(arguments.target, arguments.seed, Path(folder), stop, arguments.cases or sys.maxsize)


def _report(target: str, seed: int, folder: Path, stop: float, cases: int) -> int:
    counts: collections.Counter[str] = collections.Counter()
    start, number, ready, done = time.monotonic(), 0, False, False
    findings: collections.Counter[tuple[str, str]] = collections.Counter()

    def record(number: int, change: str, outcome: str, message: str) -> None:
        """Count an outcome, and print it if it is forbidden and the first that is raised by its line of code."""
        counts[outcome if outcome in (WORKS, REFUSED) else "forbidden"] += 1
        if outcome == WORKS and message:
            counts["requests"] += int(message)
        if outcome in (WORKS, REFUSED):
            return
        (place, *_) = [line for line in reversed(message.splitlines()) if line.startswith('  File "')] or [message]
        findings[outcome, place] += 1
        if findings[outcome, place] == 1:
            _print_finding(target, seed, number, change, outcome, message)

    while not done:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(target, seed, folder, (number, cases, stop), not ready, sender))
        process.start()
        sender.close()
        change = ""
        patience = PREPARATION_SECONDS
        while (event := _receive(receiver, patience)) is not None:
            patience = STUCK_SECONDS
            if event[0] == "ready":
                ready, start = True, start if ready else time.monotonic()
            elif event[0] == "begin":
                number, change = event[1], event[2]
            elif event[0] == "done":
                done = True
            else:
                record(number, change, event[1], event[2])
                number, change = number + 1, ""
        process.join(5 if change else 60)  # it has ended, or stops its server, unless it is stuck
        process.kill()
        process.join()
        if not ready:
            raise SystemExit("the intact files could not be written")
        if change:
            record(number, change, f"the process ended or was stuck (status {process.exitcode})", change)
            number += 1
        elif process.exitcode:
            raise SystemExit(f"the generator of case {number} failed")
    minutes = (time.monotonic() - start) / 60
    total = counts.total() - counts["requests"]
    for (outcome, place), count in findings.items():
        sys.stdout.write(f"{count} x {outcome}: {place.strip()[:200]}\n")
    speed = f"{total} cases in {minutes:.1f} minutes ({total / minutes:.0f} a minute)"
    sys.stdout.write(f"{target}, seed {seed}: {speed} {dict(counts)}\n")
    return int(counts["forbidden"] > 0)


def _receive(receiver: Connection, seconds: float) -> tuple[object, ...] | None:
    """Return the next event of the worker; None if it ended or is stuck."""
    try:
        return receiver.recv() if receiver.poll(seconds) else None
    except EOFError:
        return None


def _print_finding(target: str, seed: int, number: int, change: str, outcome: str, message: str) -> None:
    lines = "".join(f"    {line}\n" for line in message.splitlines())
    command = f"python -m fuzz {target} --seed {seed} --case {number}"
    sys.stdout.write(f"FORBIDDEN: {outcome}\n  {change}\n  {command}\n{lines}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
