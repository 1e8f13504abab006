"""Measure how throughput and memory change with text length, batch size, beams and threads.

Usage: python benchmarks/scale/growth.py [length] [batch] [beams] [threads] [--rounds 5] [--json FILE] [--plot FILE]

The models have real sizes and random weights, and the texts are synthetic. Encoders have all-MiniLM-L6-v2's size and
rotary positions: one attends to the whole text in every layer, and one has windows of 64 tokens on each side in two of
three layers, like ModernBERT. Beams use Marian's base size. Each point runs in its own process, interleaved by rounds.
The memory of a point is the peak of its process minus the loaded model. For growing corpora, see corpus.py.
"""

import argparse
import json
from pathlib import Path

import torch

from clearhead.benchmark.hardware import hardware_info
from clearhead.benchmark.runner import Candidate, run_benchmark
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import generate
from clearhead.generation.strategy import EncodedSource
from clearhead.io.atomic import atomic_file
from clearhead.io.json import write_json
from clearhead.models.config import EncoderConfig, Seq2SeqConfig
from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.packed_batch import packed_batches
from clearhead.runtime.process import tune_process
from clearhead.tokenizers.base import Tokens

CPU = torch.device("cpu")
MAX_LENGTH = 8192
WINDOW = 64
TARGET_LENGTH = 32


def encoding_worker(length, tokens, batch_tokens, use_windows, threads):
    """Return a function that encodes a number of tokens in texts of equal length."""
    tune_process()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    pattern = tuple(WINDOW if layer % 3 else None for layer in range(6)) if use_windows else ()
    config = EncoderConfig(
        vocab_size=30522, d_model=384, ffn_hidden=1536, num_heads=12, num_layers=6, max_len=MAX_LENGTH,
        positions="rotary", windows=pattern, activation="gelu", initializer_range=0.02,
    )  # fmt: skip
    model = EncoderModel(config).eval()
    runner = inference_copy(model, "auto", CPU)
    rows = torch.randint(1, config.vocab_size, (tokens // length, length)).tolist()
    texts = [Tokens(ids=row, truncated=False) for row in rows]

    def encode_batches(_):
        for batch in packed_batches(texts, batch_tokens, config, CPU):
            with torch.inference_mode():
                batch.unpack(runner(batch.ids, batch.mask))

    return encode_batches


def generation_worker(beams, sentences, threads):
    """Return a function that generates targets of equal length."""
    tune_process()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(vocab_size=58101, positions="concatenated", max_len=512)).eval()
    runner = inference_copy(model, "auto", CPU)
    settings = GenerationConfig(beam_size=beams, min_new_tokens=TARGET_LENGTH, max_new_tokens=TARGET_LENGTH)
    rows = torch.randint(3, 58101, (sentences, 20)).tolist()
    sources = [EncodedSource([*row, model.config.eos_ids[0]], (model.config.start_id,)) for row in rows]
    return lambda _: generate(runner, sources, settings)


def all_studies(threads):
    """Return the studies by name: the label of the axis, and for each line its points, as tokens and candidate."""
    lengths, sizes = [2**power for power in range(4, 14)], [2**power for power in range(8, 15)]
    counts = range(1, threads + 1)
    return {
        "length": (
            "tokens in a text",
            {
                name: {
                    n: (MAX_LENGTH, Candidate(encoding_worker, (n, MAX_LENGTH, None, use_windows, threads)))
                    for n in lengths
                }
                for name, use_windows in (("whole text", False), (f"windows of {WINDOW}", True))
            },
        ),
        "batch": (
            "tokens in a batch",
            {"texts of 16": {n: (16384, Candidate(encoding_worker, (16, 16384, n, False, threads))) for n in sizes}},
        ),
        "beams": (
            "beams",
            {
                f"{count} sentence{'s' * (count > 1)}": {
                    n: (count * TARGET_LENGTH, Candidate(generation_worker, (n, count, threads)))
                    for n in (1, 2, 4, 8, 16)
                }
                for count in (1, 32)
            },
        ),
        "threads": (
            "threads",
            {
                "encoding, texts of 16": {
                    n: (16384, Candidate(encoding_worker, (16, 16384, None, False, n))) for n in counts
                },
                "encoding, texts of 256": {
                    n: (8192, Candidate(encoding_worker, (256, 8192, None, False, n))) for n in counts
                },
                "generating, 4 beams": {
                    n: (32 * TARGET_LENGTH, Candidate(generation_worker, (4, 32, n))) for n in counts
                },
            },
        ),
    }


def measure(lines, rounds):
    """Measure the points of each line: the varied size, tokens per second, and memory."""
    points = {
        f"{line}: {n}": (line, n, tokens)
        for line, line_points in lines.items()
        for n, (tokens, _) in line_points.items()
    }
    candidates = {
        f"{line}: {n}": candidate for line, line_points in lines.items() for n, (_, candidate) in line_points.items()
    }
    results = run_benchmark(candidates, [None], len, rounds=rounds, on_round=lambda _: None)
    rows = {line: [] for line in lines}
    for measurement in results.measurements:
        line, n, tokens = points[measurement.name]
        rates = [tokens * rate for rate in measurement.rates]
        rows[line].append(
            {
                "at": n,
                "tokens_per_second": tokens * measurement.median,
                "lowest": min(rates),
                "highest": max(rates),
                "mib": measurement.peak_mib - measurement.loaded_mib,
            }
        )
    return rows


def plot(path, results):
    """Plot tokens per second against the varied size, with one panel per study."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(results), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, (axis, rows) in zip(panels, results.values(), strict=True):
        for line, points in rows.items():
            panel.plot([p["at"] for p in points], [p["tokens_per_second"] for p in points], marker=".", label=line)
        panel.set_xscale("log", base=2)
        panel.set_ylim(bottom=0)
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    panels[0].set_ylabel("tokens/s")
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="length, batch, beams or threads; all by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    known = all_studies(args.threads)
    if unknown := set(args.studies) - set(known):
        parser.error(f"unknown study: {', '.join(sorted(unknown))}")
    results = {}
    for name in args.studies or known:
        axis, lines = known[name]
        results[name] = axis, measure(lines, args.rounds)
        for line, points in results[name][1].items():
            print(f"{line}\n  {axis:>18}  {'tokens/s':>9}  {'MiB':>7}")
            for point in points:
                spread = f"{point['lowest']:,.0f} to {point['highest']:,.0f}"
                print(f"  {point['at']:18}  {point['tokens_per_second']:9,.0f}  {point['mib']:7,.0f}  ({spread})")
    environment = {"machine": hardware_info(args.threads, ("clearhead", "torch")), "rounds": args.rounds}
    print(json.dumps(environment))
    if args.json:
        write_json(args.json, environment | {"studies": {name: rows for name, (_, rows) in results.items()}})
    if args.plot:
        plot(args.plot, results)


if __name__ == "__main__":
    main()
