"""`clearhead benchmark`: measure encoding, generation and training on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli import options
from clearhead.cli.outputs import lock_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clearhead.benchmark.runner import BenchmarkResult

benchmark = typer.Typer(
    help="Measure speed and memory on this machine. Each precision runs in its own process, interleaved.",
    no_args_is_help=True,
)

Rounds = Annotated[int, typer.Option(min=1, help="Timed rounds, after one warm-up round.")]
Threads = Annotated[int | None, typer.Option(min=1, max=4096, help="Number of threads. Default: one per core.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the results with hardware and versions to this file.")
]
Plot = Annotated[Path | None, typer.Option(help="Draw a bar chart to this PNG file.")]


@benchmark.command()
def encode(
    context: typer.Context,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="Text files, as for `encode`. Default: random texts."),
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    number: Annotated[int, typer.Option(min=1, help="Texts per round: the first ones of the files.")] = 1000,
    length: Annotated[int, typer.Option(min=1, help="Mean number of tokens of a random text.")] = 16,
    rounds: Rounds = 5,
    threads: Threads = None,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Measure encoding, in tokens per second."""
    from itertools import islice

    from clearhead.benchmark import encode as work
    from clearhead.benchmark.runner import run_benchmark
    from clearhead.data.corpus import Corpus
    from clearhead.pipelines.text_encoder import TextEncoder

    _claim_outputs(context, texts or (), json_file, plot)
    num_threads = _num_threads(threads)
    encoder = TextEncoder.from_pretrained(model, precision="float32", device="cpu")
    items = list(dict.fromkeys(islice(Corpus(texts), number))) if texts else work.synthetic(encoder, number, length)
    if not items:
        raise ValueError(f"{', '.join(texts or ())}: no text to encode")
    tokens = work.token_counts(encoder, items)
    result = run_benchmark(
        work.candidates(model, num_threads),
        items,
        lambda batch: sum(tokens[text] for text in batch),
        rounds=rounds,
        check=items[:200],
        on_round=_print_line,
    )
    notes = {name: f"cosine {cosine:.5f}" for name, cosine in work.min_cosines(result.outputs).items()}
    about = {"work": "encode", "model": model, "texts": len(items), "tokens": sum(tokens.values())}
    _report(result, notes, about, num_threads, json_file, plot)


@benchmark.command()
def generate(
    context: typer.Context,
    model: options.Translator = options.TRANSLATOR,
    number: Annotated[int, typer.Option(min=1, help="Sentences per round.")] = 32,
    length: Annotated[int, typer.Option(min=1, help="Mean number of source tokens.")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="Tokens per target.")] = 32,
    beam_size: Annotated[int, typer.Option(min=1, help="Number of beams.")] = 4,
    rounds: Rounds = 5,
    threads: Threads = None,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Measure generation from random sources, in target tokens per second."""
    from clearhead.benchmark import generate as work
    from clearhead.benchmark.runner import run_benchmark

    _claim_outputs(context, (), json_file, plot)
    num_threads = _num_threads(threads)
    items = work.synthetic(model, number, length)
    result = run_benchmark(
        work.candidates(model, num_threads, beam_size, steps),
        items,
        lambda batch: len(batch) * steps,
        rounds=rounds,
        check=items,
        on_round=_print_line,
    )
    notes = {name: f"{count} of {len(items)} equal" for name, count in work.exact_matches(result.outputs).items()}
    about = {"work": "generate", "model": model, "sentences": number, "steps": steps, "beam_size": beam_size}
    _report(result, notes, about, num_threads, json_file, plot)


@benchmark.command()
def train(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="File of source sentences, one per line, pre-tokenized into words.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File of their translations, line by line.")],
    updates: Annotated[int, typer.Option(min=1, help="Updates per round.")] = 8,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Maximum padded tokens per side of a batch.")] = 4096,
    rounds: Rounds = 5,
    threads: Threads = None,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Compare training of a small translation model with a loop around torch.nn.Transformer, in tokens per second.

    bfloat16 is measured on processors with fast bfloat16 matmuls only.
    """
    from clearhead.benchmark import train as work
    from clearhead.benchmark.hardware import without_slow_bfloat16
    from clearhead.benchmark.runner import run_benchmark
    from clearhead.data.corpus import Corpus

    _claim_outputs(context, (source, target), json_file, plot)
    num_threads = _num_threads(threads)
    sources, targets = (list(Corpus([str(path)])) for path in (source, target))
    if len(sources) != len(targets):
        raise ValueError(f"{source} has {len(sources)} lines, {target} has {len(targets)}; both need the same number")
    if not sources:
        raise ValueError(f"{source} and {target} have no sentences")
    batches = work.batches(sources, targets, batch_tokens)[:updates]
    result = run_benchmark(
        without_slow_bfloat16(work.candidates(num_threads)),
        batches,
        work.count_tokens,
        rounds=rounds,
        check=batches,
        on_round=_print_line,
    )
    notes = {name: f"loss {losses[-1]:.3f}" for name, losses in result.outputs.items()}
    about = {
        "work": "train",
        "model": "4 + 4 layers, d_model 128",
        "updates": updates,
        "tokens": work.count_tokens(batches),
    }
    _report(result, notes, about, num_threads, json_file, plot)


def _report(
    result: "BenchmarkResult",
    notes: "Mapping[str, str]",
    about: "Mapping[str, Any]",
    threads: int,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    from clearhead.benchmark import report
    from clearhead.benchmark.hardware import hardware_info

    hardware = hardware_info(threads, ("clearhead", "torch", "numpy", "tokenizers"))
    for line in report.table(result.measurements, "tokens/s", notes):
        typer.echo(line)
    typer.echo(f"{hardware['processor']}, {threads} threads, torch {hardware['versions'].get('torch')}", err=True)
    if json_file is not None:
        report.write_report(json_file, result.measurements, {**about, "notes": dict(notes), "machine": hardware})
    if plot is not None:
        report.plot(plot, result.measurements, "tokens/s", f"{about['work']}: {about['model']}")


def _claim_outputs(
    context: typer.Context, inputs: "Iterable[str | Path]", json_file: Path | None, plot: Path | None
) -> None:
    if plot is not None and plot == json_file:
        raise ValueError(f"{plot} is the file of --json and of --plot; give two files")
    for output in (json_file, plot):
        if output is not None:
            lock_output(context, output, inputs)
    if plot is not None and plot.suffix.lower() != ".png":
        raise ValueError(f"{plot}: expected the name of a PNG file, such as {plot.with_suffix('.png')}")


def _num_threads(requested: int | None) -> int:
    import os

    return requested or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def _print_line(line: str) -> None:
    typer.echo(line, err=True)
