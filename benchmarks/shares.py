"""Where the time goes: shares of products, attention and the rest, by PyTorch's profiler; and how fast products are.

Usage: python benchmarks/shares.py rates
       python benchmarks/shares.py encode TEXTS [--number 1000]
       python benchmarks/shares.py generate [--beams 4] [--steps 32]
       python benchmarks/shares.py train SOURCE TARGET [--updates 4]

The work is that of benchmarks/encode.py, generate.py and train.py, in float32 and in bfloat16, after a warm-up; shares
are of the time inside PyTorch's operators, and beside each kind of work stand those that take most. `generate` needs
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
from clearhead.runtime.allocator import configure_allocator
from clearhead.runtime.prepacked_linear import PrepackedLinear

THREADS = 2
NUMBERS = ("float32", "bfloat16")
KINDS = {
    "products": ("linear", "addmm", "mm", "matmul", "_mkl_linear"),
    "attention": ("attention", "softmax", "bmm", "baddbmm"),
    "vocabulary: softmax and best": ("log_softmax", "amax", "topk", "sort"),
    "gathering and copying": (
        "copy", "clone", "contiguous", "cat", "index", "gather", "scatter", "embedding", "masked_fill", "_to_copy",
    ),
    "norms, sums, activations, dropout": (
        "norm", "add", "mul", "sub", "div", "gelu", "relu", "threshold", "silu", "sum", "exp", "where", "drop",
    ),
    "optimiser": ("adam",),
}  # fmt: skip
"""Of each kind of work what the names of its operators contain; the first kind counts whose word is the longest."""


def kind(name):
    """The kind of an operator."""
    name = name.split("::")[-1].lower()
    found = [(len(word), of) for of, words in KINDS.items() for word in words if word in name]
    return max(found)[1] if found else "the rest"


def shares(title, work, given):
    """Prints the shares of one run of a work."""
    work(given)
    start = time.perf_counter()
    work(given)
    whole = time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        work(given)
    spent, largest = dict.fromkeys([*KINDS, "the rest"], 0.0), {}
    for event in seen.key_averages():
        spent[kind(event.key)] += event.self_cpu_time_total
        largest.setdefault(kind(event.key), []).append((event.self_cpu_time_total, event.key))
    total = sum(spent.values())
    print(f"{title}: {whole:.2f} s")
    for name, microseconds in spent.items():
        most = ", ".join(f"{key} {part / total:.1%}" for part, key in sorted(largest.get(name, []), reverse=True)[:4])
        print(f"  {name:33} {microseconds / total:4.0%}  {most}")


def packed_rate(dtype, seconds=2.0):
    """As `product_rate`, with the weight in oneDNN's order."""
    configure_allocator()
    linear, x = nn.Linear(1024, 1024), torch.randn(2048, 1024).to(dtype)
    packed, best, stop = PrepackedLinear(linear, dtype), float("inf"), time.perf_counter() + seconds
    with torch.inference_mode():
        while time.perf_counter() < stop:
            start = time.perf_counter()
            packed(x)
            best = min(best, time.perf_counter() - start)
    return 2 * 2048 * 1024 * 1024 / best


def rates():
    for numbers in NUMBERS:
        dtype = getattr(torch, numbers)
        packed = f"{packed_rate(dtype) / 1e9:,.0f}" if is_supported(dtype) else "not there"
        print(f"{numbers}: a large matmul {matmul_rate(numbers) / 1e9:,.0f} GFLOP/s, with packed weights {packed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    works = parser.add_subparsers(dest="work", required=True)
    works.add_parser("rates")
    one = works.add_parser("encode")
    one.add_argument("texts", type=Path)
    one.add_argument("--number", type=int, default=1000)
    one = works.add_parser("generate")
    one.add_argument("--beams", type=int, default=4)
    one.add_argument("--steps", type=int, default=32)
    one = works.add_parser("train")
    one.add_argument("source", type=Path)
    one.add_argument("target", type=Path)
    one.add_argument("--updates", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.work == "rates":
        rates()
    elif options.work == "encode":
        texts = options.texts.read_text(encoding="utf-8").splitlines()[: options.number]
        for numbers in NUMBERS:
            shares(numbers, encode.clearhead_worker("all-MiniLM-L6-v2", numbers, THREADS), texts)
    elif options.work == "generate":
        from generate import made  # the model of benchmarks/generate.py

        with tempfile.TemporaryDirectory() as folder:
            made(folder)
            sources = generate.synthetic(folder, 32, 20)
            for numbers in NUMBERS:
                shares(
                    numbers, generate.clearhead_worker(folder, numbers, THREADS, options.beams, options.steps), sources
                )
    else:
        sides = [path.read_text(encoding="utf-8").splitlines() for path in (options.source, options.target)]
        some = train.batches(*sides, 4096)[: options.updates]
        for numbers in NUMBERS:
            shares(numbers, train.clearhead_worker(numbers == "bfloat16", THREADS), some)


if __name__ == "__main__":
    main()
