"""Profile the share of time in matmuls, attention and other operators, and measure the throughput of matmuls.

Usage: python benchmarks/overhead/shares.py rates
       python benchmarks/overhead/shares.py encode TEXTS [--number 1000]
       python benchmarks/overhead/shares.py generate [--beams 4] [--steps 32]
       python benchmarks/overhead/shares.py train SOURCE TARGET [--updates 4]

The workloads are those of benchmarks/encode.py, generate.py and train.py, in float32 and in bfloat16, after a warm-up.
Shares refer to the time inside PyTorch's operators; each category lists its most expensive ones. `generate` requires
transformers.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from clearhead.benchmark import encode, generate, train
from clearhead.benchmark.hardware import matmul_rate
from clearhead.kernels.linear import is_supported
from clearhead.runtime.converters.prepacked_linear import PrepackedLinear
from clearhead.runtime.process import tune_process

THREADS = 2
DTYPES = ("float32", "bfloat16")
CATEGORIES = {
    "matmuls": ("linear", "addmm", "mm", "matmul", "_mkl_linear"),
    "attention": ("attention", "softmax", "bmm", "baddbmm"),
    "vocabulary: softmax and top-k": ("log_softmax", "amax", "topk", "sort"),
    "gather and copy": (
        "copy", "clone", "contiguous", "cat", "index", "gather", "scatter", "embedding", "masked_fill", "_to_copy",
    ),
    "norms, sums, activations, dropout": (
        "norm", "add", "mul", "sub", "div", "gelu", "relu", "threshold", "silu", "sum", "exp", "where", "drop",
    ),
    "optimizer": ("adam",),
}  # fmt: skip
"""Substrings of operator names by category; the longest match decides the category."""


def category_of(name):
    """Return the category of an operator."""
    name = name.split("::")[-1].lower()
    matches = [(len(word), category) for category, words in CATEGORIES.items() for word in words if word in name]
    return max(matches)[1] if matches else "other"


def print_shares(title, workload, inputs):
    """Print the shares of one run of a workload."""
    workload(inputs)
    start = time.perf_counter()
    workload(inputs)
    seconds = time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        workload(inputs)
    times, largest = dict.fromkeys([*CATEGORIES, "other"], 0.0), {}
    for event in profiler.key_averages():
        times[category_of(event.key)] += event.self_cpu_time_total
        largest.setdefault(category_of(event.key), []).append((event.self_cpu_time_total, event.key))
    total = sum(times.values())
    print(f"{title}: {seconds:.2f} s")
    for name, microseconds in times.items():
        top_operators = ", ".join(
            f"{key} {time_spent / total:.1%}" for time_spent, key in sorted(largest.get(name, []), reverse=True)[:4]
        )
        print(f"  {name:33} {microseconds / total:4.0%}  {top_operators}")


def packed_rate(dtype, seconds=2.0):
    """Return the throughput of a large matmul with packed weights, in FLOP per second."""
    tune_process()
    linear, x = nn.Linear(1024, 1024), torch.randn(2048, 1024).to(dtype)
    packed, best, stop = PrepackedLinear(linear, dtype), float("inf"), time.perf_counter() + seconds
    with torch.inference_mode():
        while time.perf_counter() < stop:
            start = time.perf_counter()
            packed(x)
            best = min(best, time.perf_counter() - start)
    return 2 * 2048 * 1024 * 1024 / best


def print_rates():
    for dtype_name in DTYPES:
        dtype = getattr(torch, dtype_name)
        packed = f"{packed_rate(dtype) / 1e9:,.0f}" if is_supported(dtype) else "not supported"
        print(
            f"{dtype_name}: a large matmul {matmul_rate(dtype_name) / 1e9:,.0f} GFLOP/s, with packed weights {packed}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="work", required=True)
    commands.add_parser("rates")
    command = commands.add_parser("encode")
    command.add_argument("texts", type=Path)
    command.add_argument("--number", type=int, default=1000)
    command = commands.add_parser("generate")
    command.add_argument("--beams", type=int, default=4)
    command.add_argument("--steps", type=int, default=32)
    command = commands.add_parser("train")
    command.add_argument("source", type=Path)
    command.add_argument("target", type=Path)
    command.add_argument("--updates", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    if args.work == "rates":
        print_rates()
    elif args.work == "encode":
        texts = args.texts.read_text(encoding="utf-8").splitlines()[: args.number]
        for dtype_name in DTYPES:
            print_shares(dtype_name, encode.clearhead_worker("all-MiniLM-L6-v2", dtype_name, THREADS), texts)
    elif args.work == "generate":
        from generate import write_random_model  # the model of benchmarks/generate.py

        with tempfile.TemporaryDirectory() as folder:
            write_random_model(folder)
            sources = generate.synthetic(folder, 32, 20)
            for dtype_name in DTYPES:
                print_shares(
                    dtype_name, generate.clearhead_worker(folder, dtype_name, THREADS, args.beams, args.steps), sources
                )
    else:
        sides = [path.read_text(encoding="utf-8").splitlines() for path in (args.source, args.target)]
        batches = train.batches(*sides, 4096)[: args.updates]
        for dtype_name in DTYPES:
            print_shares(dtype_name, train.clearhead_worker(dtype_name == "bfloat16", THREADS), batches)


if __name__ == "__main__":
    main()
