"""Measure the time from starting the command to its first line of output, compared with Python's startup.

Usage: python benchmarks/overhead/startup.py [--json FILE]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from clearhead.benchmark.hardware import hardware_info
from clearhead.io.json import write_json

COMMAND = str(Path(sys.executable).with_name("clearhead"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "clearhead --help": [COMMAND, "--help"],
    "clearhead --version": [COMMAND, "--version"],
    "echo Hello | clearhead translate": [COMMAND, "translate"],
    "echo Hello | clearhead encode": [COMMAND, "encode"],
}


def seconds(command: list[str]) -> float:
    """Return the seconds from the start of a process to its first line of output, or to its end without output."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"Hello\n")
        process.stdin.close()
        process.stdout.readline()
        elapsed = time.perf_counter() - start
        _, errors = process.stdout.read(), process.stderr.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {errors.decode()}")
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    rounds = {name: [] for name in COMMANDS}
    for _ in range(args.rounds):  # interleaved, so that drift affects all commands equally
        for name, command in COMMANDS.items():
            rounds[name].append(seconds(command))
    figures = {
        name: {"median": statistics.median(times), "min": min(times), "max": max(times)}
        for name, times in rounds.items()
    }
    for name, figure in figures.items():
        print(f"{name:32} median {figure['median']:.3f} s  ({figure['min']:.3f} to {figure['max']:.3f})")
    if args.json:
        environment = {"machine": hardware_info(os.cpu_count() or 1, ("clearhead", "torch"))}
        write_json(args.json, environment | {"rounds": args.rounds, "figures": figures})


if __name__ == "__main__":
    main()
