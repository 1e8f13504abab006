"""Measure the peak memory of encoding growing corpora, and check that a killed and resumed run writes the same bytes.

Usage: python benchmarks/scale/corpus.py LINES.txt [--sizes 10000,100000] [--kills 5] [--json FILE] [--plot FILE]

LINES.txt has one text per line. Each run is a separate `clearhead encode` process with the default model. A size that
is given twice runs twice.
"""

import argparse
import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clearhead.benchmark.hardware import hardware_info
from clearhead.io.atomic import atomic_file
from clearhead.io.json import write_json

COMMAND = str(Path(sys.executable).with_name("clearhead"))


def run(texts: Path, output: Path) -> tuple[float, float]:
    """Run the command; return the seconds and the peak memory in MiB."""
    start = time.perf_counter()
    process = subprocess.Popen([COMMAND, "encode", str(texts), "--quiet", "--output", str(output)])
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def encode_with_kills(texts: Path, output: Path, kills: int, seconds: float) -> int:
    """Kill and resume a run at random times until it completes; return the number of kills."""
    generator, num_kills = random.Random(0), 0
    for _ in range(kills):
        process = subprocess.Popen([COMMAND, "encode", str(texts), "-q", "--resume", "-o", str(output)])
        time.sleep(generator.uniform(0.3, 1.0) * (4 + seconds / kills))
        process.send_signal(signal.SIGKILL)
        num_kills += process.wait() == -signal.SIGKILL
    subprocess.run([COMMAND, "encode", str(texts), "-q", "--resume", "-o", str(output)], check=True)
    return num_kills


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def plot(path: Path, runs: list[dict[str, float]]) -> None:
    """Plot time and peak memory against the number of lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    for panel, key, label in zip(panels, ("seconds", "peak_mib"), ("seconds", "peak memory, MiB"), strict=True):
        panel.plot([run["lines"] for run in runs], [run[key] for run in runs], marker=".", linestyle="none")
        panel.set_xscale("log")
        panel.set_xlabel("lines")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
    panels[0].set_yscale("log")
    panels[1].set_ylim(0, 1.1 * max(run["peak_mib"] for run in runs))
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path)
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in sizes:
            texts = folder / f"{size}.txt"
            with args.lines.open("rb") as source, texts.open("wb") as target:
                target.writelines(itertools.islice(source, size))
            seconds, peak = run(texts, folder / f"{size}.npy")
            runs.append({"lines": size, "seconds": round(seconds, 1), "peak_mib": round(peak)})
            ratio = peak / runs[0]["peak_mib"]
            print(f"{size:>9,} lines: {seconds:6.1f} s, peak memory {peak:6.0f} MiB, {ratio:.2f}x the first")
        num_kills = encode_with_kills(texts, folder / "killed.npy", args.kills, seconds)
        same = digest(folder / "killed.npy") == digest(folder / f"{sizes[-1]}.npy")
        print(f"{sizes[-1]:>9,} lines, {num_kills} kills and resumes: {'same bytes' if same else 'DIFFERENT BYTES'}")
    if args.json:
        environment = {"machine": hardware_info(os.cpu_count() or 1, ("clearhead", "torch"))}
        write_json(args.json, environment | {"runs": runs, "kills": num_kills, "same": same})
    if args.plot:
        plot(args.plot, runs)


if __name__ == "__main__":
    main()
