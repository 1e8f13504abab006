"""What it costs to look: texts encoded by a model that was never watched, after a watch or a trace, and inside one.

Usage: python benchmarks/watch.py [--model all-MiniLM-L6-v2] [--number 200] [--length 30] [--threads 2] [--rounds 9]
       [--json FILE]

The first contestant is the model that nobody looked at; the others are told as times its rate in the same round, the
median with the least and the largest. The second is the same again: its spread is the noise, and a look that has ended
costs nothing if its ratio lies within.
"""

import argparse
from pathlib import Path

import torch

from clearhead import TextEncoder, traced, watch
from clearhead.benchmark import encode, report
from clearhead.benchmark.hardware import hardware_info
from clearhead.benchmark.runner import Candidate, run_benchmark
from clearhead.io import hub
from clearhead.runtime.allocator import configure_allocator
from clearhead.runtime.inference_copy import inference_copies

LAYER, HEAD = 0, 0


def watched(encoder, texts):
    with watch(encoder, layers=[LAYER], heads=[HEAD]):
        return encoder.encode(texts)


def told(encoder, texts):
    # what encodes is the model's copy for running, where there is one
    (runs,) = inference_copies(encoder.model) or [encoder.model]
    return traced(runs, lambda: encoder.encode(texts)).output


def contestant(model, threads, before, inside):
    """Texts to vectors.

    Args:
        model: a folder or a name.
        threads: how many.
        before: how the model is looked at before the contest; None for never.
        inside: how each round is looked at; None for not at all.
    """
    configure_allocator()
    torch.set_num_threads(threads)
    encoder = TextEncoder.from_pretrained(model, precision="float32", device="cpu")
    if before is not None:
        before(encoder, ["A text that somebody looked at."])
    return encoder.encode if inside is None else lambda texts: inside(encoder, texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=hub.DEFAULT_MODEL)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--length", type=int, default=30, help="tokens in a text, about")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    encoder = TextEncoder.from_pretrained(options.model, precision="float32", device="cpu")
    texts = encode.synthetic(encoder, options.number, options.length)
    tokens = encode.token_counts(encoder, texts)
    looks = {
        "never looked at": (None, None),
        "never looked at, again": (None, None),
        "after a watch": (watched, None),
        "after a trace": (told, None),
        "inside a watch of one head": (None, watched),
        "inside a trace": (None, told),
    }
    found = run_benchmark(
        {name: Candidate(contestant, (options.model, options.threads, *look)) for name, look in looks.items()},
        texts,
        lambda some: sum(tokens[text] for text in some),
        rounds=options.rounds,
        check=texts[:20],
        on_round=print,
    )
    for name, vectors in found.outputs.items():
        assert (vectors == found.outputs["never looked at"]).all(), f"{name}: the vectors are others"
    for line in report.table(found.measurements, "tokens/s"):
        print(line)
    if options.json:
        about = {"texts": len(texts), "tokens": sum(tokens.values())}
        about["machine"] = hardware_info(options.threads, ("clearhead", "torch"))
        report.write_report(options.json, found.measurements, about)


if __name__ == "__main__":
    main()
