"""How long `clearhead --help` takes from the shell, beside Python's own start.

Usage: python benchmarks/startup.py [--json FILE]
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "clearhead --help": [str(Path(sys.executable).with_name("clearhead")), "--help"],
    "clearhead --version": [str(Path(sys.executable).with_name("clearhead")), "--version"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rounds = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):  # in turn, so that a drift of the machine hits all alike
        for name, command in COMMANDS.items():
            rounds[name].append(seconds(command))
    figures = {
        name: {"median": statistics.median(times), "min": min(times), "max": max(times)}
        for name, times in rounds.items()
    }
    for name, figure in figures.items():
        print(f"{name:20} median {figure['median']:.3f} s  ({figure['min']:.3f} to {figure['max']:.3f})")
    if options.json:
        about = {"python": platform.python_version(), "machine": platform.machine(), "figures": figures}
        options.json.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
