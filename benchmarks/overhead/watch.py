"""Measure the overhead of `watch` and `traced` during encoding, and after they have ended.

Usage: python benchmarks/overhead/watch.py [--model all-MiniLM-L6-v2] [--number 200] [--length 30] [--threads 2]
       [--rounds 9] [--json FILE]

The baseline is a model that was never inspected. The others are ratios to its throughput in the same round: median,
minimum and maximum. The second candidate repeats the baseline, so its spread is the noise. An ended inspection costs
nothing if its ratio is within this spread.
"""

import argparse
from pathlib import Path

import torch

from clearhead import TextEncoder, traced, watch
from clearhead.benchmark import encode, report
from clearhead.benchmark.hardware import hardware_info
from clearhead.benchmark.runner import Candidate, run_benchmark
from clearhead.io import hub
from clearhead.runtime.inference_copy import inference_copies
from clearhead.runtime.process import tune_process

LAYER, HEAD = 0, 0


def watch_encode(encoder, texts):
    with watch(encoder, layers=[LAYER], heads=[HEAD]):
        return encoder.encode(texts)


def trace_encode(encoder, texts):
    # encoding may use an inference copy of the model
    (model,) = inference_copies(encoder.model) or [encoder.model]
    return traced(model, lambda: encoder.encode(texts)).output


def worker(model, threads, before, inside):
    """Return a function that encodes texts.

    Args:
        model: folder or name of a model.
        threads: number of threads.
        before: inspection before the benchmark, or None.
        inside: inspection during each round, or None.
    """
    tune_process()
    torch.set_num_threads(threads)
    encoder = TextEncoder.from_pretrained(model, precision="float32", device="cpu")
    if before is not None:
        before(encoder, ["An inspected text."])
    return encoder.encode if inside is None else lambda texts: inside(encoder, texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=hub.DEFAULT_MODEL)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--length", type=int, default=30, help="approximate number of tokens per text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    encoder = TextEncoder.from_pretrained(args.model, precision="float32", device="cpu")
    texts = encode.synthetic(encoder, args.number, args.length)
    tokens = encode.token_counts(encoder, texts)
    inspections = {
        "never inspected": (None, None),
        "never inspected, repeated": (None, None),
        "after a watch": (watch_encode, None),
        "after a trace": (trace_encode, None),
        "inside a watch of one head": (None, watch_encode),
        "inside a trace": (None, trace_encode),
    }
    results = run_benchmark(
        {name: Candidate(worker, (args.model, args.threads, *inspection)) for name, inspection in inspections.items()},
        texts,
        lambda batch: sum(tokens[text] for text in batch),
        rounds=args.rounds,
        check=texts[:20],
        on_round=print,
    )
    for name, vectors in results.outputs.items():
        assert (vectors == results.outputs["never inspected"]).all(), f"{name}: the vectors differ"
    for line in report.table(results.measurements, "tokens/s"):
        print(line)
    if args.json:
        settings = {"texts": len(texts), "tokens": sum(tokens.values())}
        settings["machine"] = hardware_info(args.threads, ("clearhead", "torch"))
        report.write_report(args.json, results.measurements, settings)


if __name__ == "__main__":
    main()
