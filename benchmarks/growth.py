"""How cost grows: with a text's length, the batch, the beams and the threads.

Usage: python benchmarks/growth.py [length] [batch] [beams] [threads] [--rounds 5] [--json FILE] [--plot FILE]

Random weights of real sizes and made-up texts: all-MiniLM-L6-v2's size with rotary positions for texts, once with
attention over the whole text in every layer, and once with windows of 64 tokens to each side in two layers of three, as
ModernBERT has them; Marian's base size for beams. Each point has a process of its own, and all take turns; a point's
memory is the most that its process held beside the loaded model. How it grows with a corpus: benchmarks/corpus.py.
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
from clearhead.runtime.allocator import configure_allocator
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.packed_batch import packed_batches
from clearhead.tokenizers.base import Tokens

CPU = torch.device("cpu")
LONGEST = 8192
WINDOW = 64
GENERATED = 32


def encoding(length, tokens, batch_tokens, windows, threads):
    """The work of encoding so many tokens, in texts of one length."""
    configure_allocator()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    pattern = tuple(WINDOW if layer % 3 else None for layer in range(6)) if windows else ()
    config = EncoderConfig(
        vocab_size=30522, d_model=384, ffn_hidden=1536, num_heads=12, num_layers=6, max_len=LONGEST,
        positions="rotary", windows=pattern, activation="gelu", initializer_range=0.02,
    )  # fmt: skip
    model = EncoderModel(config).eval()
    runner = inference_copy(model, "auto", CPU)
    rows = torch.randint(1, config.vocab_size, (tokens // length, length)).tolist()
    texts = [Tokens(ids=row, truncated=False) for row in rows]

    def work(_):
        for batch in packed_batches(texts, batch_tokens, config, CPU):
            with torch.inference_mode():
                batch.unpack(runner(batch.ids, batch.mask))

    return work


def generating(beams, sentences, threads):
    """The work of generating targets of one length."""
    configure_allocator()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(vocab_size=58101, positions="concatenated", max_len=512)).eval()
    runner = inference_copy(model, "auto", CPU)
    settings = GenerationConfig(beam_size=beams, min_new_tokens=GENERATED, max_new_tokens=GENERATED)
    rows = torch.randint(3, 58101, (sentences, 20)).tolist()
    sources = [EncodedSource([*row, model.config.eos_ids[0]], (model.config.start_id,)) for row in rows]
    return lambda _: generate(runner, sources, settings)


def studies(threads):
    """For each study what its points are called, and for each of its lines the points: the tokens of the work, and who
    does it."""
    lengths, sizes = [2**power for power in range(4, 14)], [2**power for power in range(8, 15)]
    each = range(1, threads + 1)
    return {
        "length": (
            "tokens in a text",
            {
                name: {n: (LONGEST, Candidate(encoding, (n, LONGEST, None, windows, threads))) for n in lengths}
                for name, windows in (("whole text", False), (f"windows of {WINDOW}", True))
            },
        ),
        "batch": (
            "tokens in a batch",
            {"texts of 16": {n: (16384, Candidate(encoding, (16, 16384, n, False, threads))) for n in sizes}},
        ),
        "beams": (
            "beams",
            {
                f"{count} sentence{'s' * (count > 1)}": {
                    n: (count * GENERATED, Candidate(generating, (n, count, threads))) for n in (1, 2, 4, 8, 16)
                }
                for count in (1, 32)
            },
        ),
        "threads": (
            "threads",
            {
                "encoding, texts of 16": {n: (16384, Candidate(encoding, (16, 16384, None, False, n))) for n in each},
                "encoding, texts of 256": {n: (8192, Candidate(encoding, (256, 8192, None, False, n))) for n in each},
                "generating, 4 beams": {n: (32 * GENERATED, Candidate(generating, (4, 32, n))) for n in each},
            },
        ),
    }


def measured(lines, rounds):
    """For each line its points: what varies, tokens a second, the memory that the work took."""
    points = {f"{line}: {n}": (line, n, tokens) for line, some in lines.items() for n, (tokens, _) in some.items()}
    contestants = {f"{line}: {n}": who for line, some in lines.items() for n, (_, who) in some.items()}
    found = run_benchmark(contestants, [None], len, rounds=rounds, on_round=lambda _: None)
    rows = {line: [] for line in lines}
    for figure in found.measurements:
        line, n, tokens = points[figure.name]
        rates = [tokens * rate for rate in figure.rates]
        rows[line].append(
            {
                "at": n,
                "tokens_per_second": tokens * figure.median,
                "lowest": min(rates),
                "highest": max(rates),
                "mib": figure.peak_mib - figure.loaded_mib,
            }
        )
    return rows


def draw(path, results):
    """Tokens a second over what varies; a panel for each study."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(4.2 * len(results), 3.4), layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(1, len(results), squeeze=False)[0]
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
        picture.savefig(file, format="png", dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "studies", nargs="*", metavar="STUDY", help="length, batch, beams, threads; all of them if none"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    known = studies(options.threads)
    if unknown := set(options.studies) - set(known):
        parser.error(f"no such study: {', '.join(sorted(unknown))}")
    results = {}
    for name in options.studies or known:
        axis, lines = known[name]
        results[name] = axis, measured(lines, options.rounds)
        for line, points in results[name][1].items():
            print(f"{line}\n  {axis:>18}  {'tokens/s':>9}  {'MiB':>7}")
            for point in points:
                spread = f"{point['lowest']:,.0f} to {point['highest']:,.0f}"
                print(f"  {point['at']:18}  {point['tokens_per_second']:9,.0f}  {point['mib']:7,.0f}  ({spread})")
    about = {"machine": hardware_info(options.threads, ("clearhead", "torch")), "rounds": options.rounds}
    print(json.dumps(about))
    if options.json:
        write_json(options.json, about | {"studies": {name: rows for name, (_, rows) in results.items()}})
    if options.plot:
        draw(options.plot, results)


if __name__ == "__main__":
    main()
