"""Compare the speed of two versions of Clearhead on the same workloads.

Usage: python benchmarks/versions.py OLD/src NEW/src TEXTS.txt [--number 500] [--rounds 5] [--precision auto]

OLD/src and NEW/src are the source folders of two checkouts; `git worktree add` makes a second one. TEXTS.txt has one
English text per line. Each round runs both versions, each in its own process that has loaded its models, in random
order. Each line shows the speed of the new version relative to the old one: the median of the rounds, then minimum and
maximum. It also shows whether both versions gave the same output.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

WORKLOADS = ("encode", "translate, greedy", "translate, 5 beams")


def worker(path: str, number: int, precision: str, threads: int) -> None:
    """Run each workload whose name is on standard input; print its seconds and a hash of its output."""
    import torch

    from clearhead import TextEncoder, TextToText

    torch.set_num_threads(threads)
    texts = list(dict.fromkeys(Path(path).read_text(encoding="utf-8").splitlines()))[:number]
    encoder = TextEncoder.from_pretrained(precision=precision, device="cpu")
    translator = TextToText.from_pretrained(precision=precision, device="cpu")
    run = {
        "encode": lambda: encoder.encode(texts).tobytes(),
        "translate, greedy": lambda: "\n".join(translator.generate(texts, beam_size=1)).encode(),
        "translate, 5 beams": lambda: "\n".join(translator.generate(texts, beam_size=5)).encode(),
    }
    for line in sys.stdin:
        start = time.perf_counter()
        output = run[line.strip()]()
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, hashlib.sha256(output).hexdigest()]), flush=True)


def start(source: Path, args: argparse.Namespace) -> subprocess.Popen[str]:
    """Start the worker of one version."""
    command = [sys.executable, __file__, "--worker", str(source), str(source), str(args.texts)]
    command += ["--number", str(args.number), "--precision", args.precision, "--threads", str(args.threads)]
    environment = os.environ | {"PYTHONPATH": str(source.resolve())}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measure(process: subprocess.Popen[str], workload: str) -> tuple[float, str]:
    """Run a workload in a worker; return the seconds and the hash of the output."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(workload + "\n")
    process.stdin.flush()
    seconds, digest = json.loads(process.stdout.readline())
    return seconds, digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.texts, args.number, args.precision, args.threads)
        return
    processes = {"old": start(args.old, args), "new": start(args.new, args)}
    generator = random.Random(0)
    for workload in WORKLOADS:
        digests = {name: measure(process, workload)[1] for name, process in processes.items()}
        seconds: dict[str, list[float]] = {"old": [], "new": []}
        for _ in range(args.rounds):
            for name in generator.sample(list(processes), 2):
                seconds[name].append(measure(processes[name], workload)[0])
        ratios = [old / new for old, new in zip(seconds["old"], seconds["new"], strict=True)]
        figures = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        outputs = "same output" if digests["old"] == digests["new"] else "different output"
        print(f"{workload}: {figures}, {statistics.median(seconds['new']):.2f} s, {outputs}", flush=True)
    for process in processes.values():
        assert process.stdin
        process.stdin.close()
        process.wait(timeout=10)


if __name__ == "__main__":
    main()
