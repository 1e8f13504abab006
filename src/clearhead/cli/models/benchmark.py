"""`clearhead benchmark`: how fast this machine encodes, generates and trains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli import options
from clearhead.cli.outputs import claim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clearhead.benchmark.runner import Contest

benchmark = typer.Typer(
    help="Measure speed and memory here: every precision in a process of its own, round by round in turn.",
    no_args_is_help=True,
)

Rounds = Annotated[int, typer.Option(min=1, help="Rounds that count, after one that warms up.")]
Threads = Annotated[int | None, typer.Option(min=1, max=4096, help="Threads. Default: one for each core.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures with hardware and versions here.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the figures into this PNG file.")]


@benchmark.command()
def encode(
    context: typer.Context,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXTS]...", help="Files as for encode. Default: texts made up.")
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    number: Annotated[int, typer.Option(min=1, help="Texts in a round; of a file, its first.")] = 1000,
    length: Annotated[int, typer.Option(min=1, help="About so many tokens in a text that is made up.")] = 16,
    rounds: Rounds = 5,
    threads: Threads = None,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Texts to vectors, in tokens a second."""
    from itertools import islice

    from clearhead.benchmark import encode as work
    from clearhead.benchmark.runner import run_benchmark
    from clearhead.data.corpus import Corpus
    from clearhead.pipelines.text_encoder import TextEncoder

    _claim(context, json_file, plot)
    used = _threads(threads)
    encoder = TextEncoder.from_pretrained(model, precision="float32", device="cpu")
    items = list(dict.fromkeys(islice(Corpus(texts), number))) if texts else work.synthetic(encoder, number, length)
    tokens = work.tokens_of(encoder, items)
    found = run_benchmark(
        work.contestants(model, used),
        items,
        lambda some: sum(tokens[text] for text in some),
        rounds=rounds,
        check=items[:200],
        said=_say,
    )
    notes = {name: f"cosine {cosine:.5f}" for name, cosine in work.cosines(found.outputs).items()}
    about = {"work": "encode", "model": model, "texts": len(items), "tokens": sum(tokens.values())}
    _report(found, notes, about, used, json_file, plot)


@benchmark.command()
def generate(
    context: typer.Context,
    model: options.Translator = options.TRANSLATOR,
    number: Annotated[int, typer.Option(min=1, help="Sentences in a round.")] = 32,
    length: Annotated[int, typer.Option(min=1, help="About so many tokens in a source.")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="Tokens in each target.")] = 32,
    beam_size: Annotated[int, typer.Option(min=1, help="Hypotheses that are kept at each step.")] = 4,
    rounds: Rounds = 5,
    threads: Threads = None,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Made-up sources to targets, in target tokens a second."""
    from clearhead.benchmark import generate as work
    from clearhead.benchmark.runner import run_benchmark

    _claim(context, json_file, plot)
    used = _threads(threads)
    items = work.synthetic(model, number, length)
    found = run_benchmark(
        work.contestants(model, used, beam_size, steps),
        items,
        lambda some: len(some) * steps,
        rounds=rounds,
        check=items,
        said=_say,
    )
    notes = {
        name: f"{count} of {len(items)} the exact_matches" for name, count in work.exact_matches(found.outputs).items()
    }
    about = {"work": "generate", "model": model, "sentences": number, "steps": steps, "beam_size": beam_size}
    _report(found, notes, about, used, json_file, plot)


@benchmark.command()
def train(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="Sentences, one a line, split into words.")],
    target: Annotated[Path, typer.Argument(help="Their translations, line by line.")],
    updates: Annotated[int, typer.Option(min=1, help="Updates in a round.")] = 8,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Padded tokens of a side in a batch, at most.")] = 4096,
    rounds: Rounds = 5,
    threads: Threads = None,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Updates of a small translation model, beside a plain loop around torch.nn.Transformer, in tokens a second."""
    from clearhead.benchmark import train as work
    from clearhead.benchmark.runner import run_benchmark
    from clearhead.data.corpus import Corpus

    _claim(context, json_file, plot)
    used = _threads(threads)
    sources, targets = (list(Corpus([str(path)])) for path in (source, target))
    if len(sources) != len(targets):
        raise ValueError(f"{source} has {len(sources)} lines, {target} has {len(targets)}; as many are wanted")
    some = work.batches(sources, targets, batch_tokens)[:updates]
    found = run_benchmark(work.contestants(used), some, work.tokens_of, rounds=rounds, check=some, said=_say)
    notes = {name: f"loss {losses[-1]:.3f}" for name, losses in found.outputs.items()}
    about = {"work": "train", "model": "4 + 4 layers, d_model 128", "updates": updates, "tokens": work.tokens_of(some)}
    _report(found, notes, about, used, json_file, plot)


def _report(
    found: "Contest",
    notes: "Mapping[str, str]",
    about: "Mapping[str, Any]",
    threads: int,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    from clearhead.benchmark import report
    from clearhead.benchmark.hardware import machine

    here = machine(threads, ("clearhead", "torch", "numpy", "tokenizers"))
    for line in report.table(found.figures, "tokens/s", notes):
        typer.echo(line)
    typer.echo(f"{here['processor']}, {threads} threads, torch {here['versions'].get('torch')}", err=True)
    if json_file is not None:
        report.write_json(json_file, found.figures, {**about, "notes": dict(notes), "machine": here})
    if plot is not None:
        report.draw(plot, found.figures, "tokens/s", f"{about['work']}: {about['model']}")


def _claim(context: typer.Context, *outputs: Path | None) -> None:
    for output in outputs:
        if output is not None:
            claim(context, output)


def _threads(asked: int | None) -> int:
    import os

    return asked or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def _say(line: str) -> None:
    typer.echo(line, err=True)
