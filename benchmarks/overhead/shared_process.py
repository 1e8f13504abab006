"""Measure encoding in a process that also runs sentence-transformers in bfloat16.

Usage: python benchmarks/overhead/shared_process.py TEXTS.txt [--number 150] [--threads 2] [--rounds 9]

TEXTS.txt has one text per line. The baseline is a process with Clearhead alone and without `tune_process`, as in a
program of your own. In a shared process, sentence-transformers encodes the same texts before each timed encoding. Each
candidate runs in its own process, in random order each round. The figures are throughput relative to the baseline in
the same round: median, minimum and maximum.
"""

import argparse
import multiprocessing
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from clearhead import TextEncoder, tune_process
from clearhead.io import hub

CANDIDATES = {
    "alone": (False, False),
    "alone, after tune_process": (True, False),
    "shared": (False, True),
    "shared, after tune_process": (True, True),
}
"""Each candidate: whether it calls `tune_process`, and whether it shares the process."""

state = {}


def load(precision, threads, is_tuned, is_shared):
    """Load the models of a process."""
    if is_tuned:
        tune_process()
    torch.set_num_threads(threads)
    folder = str(hub.resolve_model(hub.DEFAULT_MODEL))
    state["encode"] = TextEncoder.from_pretrained(folder, precision=precision, device="cpu").encode
    if is_shared:
        from sentence_transformers import SentenceTransformer

        options = {"torch_dtype": torch.bfloat16}
        state["neighbor"] = SentenceTransformer(folder, device="cpu", model_kwargs=options).encode


def seconds(texts):
    """Return the time of one encoding."""
    if "neighbor" in state:
        state["neighbor"](texts)
    start = time.perf_counter()
    state["encode"](texts)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--number", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--precision", default="auto")
    args = parser.parse_args()
    lines = args.texts.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line for line in lines if line.strip()))[: args.number]
    context, generator = multiprocessing.get_context("spawn"), random.Random(0)
    pools = {
        name: ProcessPoolExecutor(1, context, load, (args.precision, args.threads, *options))
        for name, options in CANDIDATES.items()
    }
    ratios = {name: [] for name in CANDIDATES}
    for number in range(args.rounds + 1):
        generator.shuffle(texts)
        times = {
            name: pools[name].submit(seconds, texts).result() for name in generator.sample(list(pools), len(pools))
        }
        for name in pools if number else ():  # the first round warms up
            ratios[name].append(times["alone"] / times[name])
    for name, values in ratios.items():
        print(f"{name:28} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
