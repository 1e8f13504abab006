"""`clearhead encode`: texts, one a line, to vectors."""

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from clearhead.corpus.encode import EncodingStats
    from clearhead.data.corpus import Corpus
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.runtime.vectors import EncodeOptions


class PoolingOption(StrEnum):
    """How hidden states become one vector."""

    mean = "mean"
    cls = "cls"
    max = "max"


class EngineOption(StrEnum):
    """Who computes."""

    local = "local"
    ray = "ray"


class ErrorsOption(StrEnum):
    """What to do with bytes that are not UTF-8."""

    strict = "strict"
    substitute = "replace"


def encode(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...",
            help="UTF-8 files with a text a line, .jsonl, .parquet, .csv or .tsv files; - is standard input.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="FILE.npy, .jsonl or .parquet; JSON lines to standard output without it. With --engine ray a folder.",
        ),
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    column: options.Column = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with an interrupted run to the same --output; --engine ray always does."),
    ] = False,
    pooling: Annotated[PoolingOption | None, typer.Option(help="Default: as the model says.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Default: as the model says.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens after which a text is cut. Default: as the model says.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="The name of one of the model's prompts, or a text to put before each text.")
    ] = None,
    truncate_dim: Annotated[int | None, typer.Option(help="Keep the first columns only.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens in a batch. Default: what keeps the device busy.")
    ] = None,
    engine: Annotated[
        EngineOption, typer.Option(help="ray: each input becomes a Parquet file, on all machines of a Ray cluster.")
    ] = EngineOption.local,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, with --engine ray. Default: all that the cluster has room for."),
    ] = None,
    precision: options.Precision = options.PrecisionOption.auto,
    device: options.Device = "auto",
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Let PyTorch's compiler write a part of the model anew; kept between runs."),
    ] = False,
    errors: Annotated[ErrorsOption, typer.Option(help="What to do with bytes that are not UTF-8.")] = (
        ErrorsOption.strict
    ),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="The summary as JSON: on standard output with --output, else on standard error."),
    ] = False,
) -> None:
    """Texts, one a line, to vectors. The input is streamed: it may be of any size."""
    from clearhead.data.corpus import Corpus

    _check_options(sources, output, resume, engine, workers)
    corpus = Corpus(sources or ["-"], column=column, errors=errors.value)
    # torch comes after what can go wrong without it
    from clearhead.corpus.encode import encode_corpus
    from clearhead.corpus.ray_shards import encode_shards
    from clearhead.corpus.ray_workers import EncodingJob
    from clearhead.runtime.compile import use_persistent_cache
    from clearhead.runtime.progress import token_progress
    from clearhead.runtime.vectors import EncodeOptions

    if compile:
        use_persistent_cache()

    choices = EncodeOptions(
        pooling=None if pooling is None else pooling.value,
        normalize=normalize,
        max_length=max_length,
        batch_tokens=batch_tokens,
        prompt=prompt,
        truncate_dim=truncate_dim,
    )
    job = EncodingJob(model, choices, precision.value, device, column, errors.value, compile)
    encoder = job.encoder()
    start, computed = time.perf_counter(), 0
    with token_progress(corpus.total_bytes, not quiet and sys.stderr.isatty()) as show:

        def advance(done: int, tokens: int) -> None:
            nonlocal computed
            computed += tokens
            show(done, tokens)

        if output is None:
            counts = _to_standard_output(encoder, corpus, choices, advance)
        elif engine is EngineOption.ray:
            counts = encode_shards(corpus.sources, output, job, encoder, workers=workers, on_step=advance)
        else:
            counts = encode_corpus(encoder, corpus, output, choices, resume=resume, on_step=advance)
    summary = _summary(encoder, counts, computed, time.perf_counter() - start, truncate_dim, model)
    summary["output"] = None if output is None else str(output)
    if as_json:
        typer.echo(json.dumps(summary, allow_nan=False), err=output is None)
    elif not quiet:
        typer.echo(_sentence(summary), err=True)


def _check_options(
    sources: list[str] | None, output: Path | None, resume: bool, engine: EngineOption, workers: int | None
) -> None:
    from clearhead.corpus.writers import check_output

    if workers is not None and engine is EngineOption.local:
        raise ValueError("--workers goes with --engine ray")
    if engine is EngineOption.ray:
        if output is None or sources is None:
            raise ValueError("--engine ray takes files, and a folder as --output: each file becomes one there")
    elif output is not None:
        check_output(output)
    elif resume:
        raise ValueError("--resume goes with --output: what went to standard output is not here any more")


def _to_standard_output(
    encoder: "TextEncoder", corpus: "Corpus", choices: "EncodeOptions", advance: "Callable[[int, int], None]"
) -> "EncodingStats":
    from clearhead.corpus.encode import EncodingStats, locate_errors
    from clearhead.corpus.writers import json_lines

    counts, seen = EncodingStats(), 0
    for some in locate_errors(encoder.stream(corpus, choices), corpus):
        for line in json_lines(some.texts, some.vectors):
            sys.stdout.buffer.write(line.encode("utf-8"))
        sys.stdout.buffer.flush()
        counts = counts.add_batch(some)
        advance(corpus.bytes_read - seen, some.num_tokens)
        seen = corpus.bytes_read
    return counts


def _summary(
    encoder: "TextEncoder", counts: "EncodingStats", computed: int, seconds: float, truncate_dim: int | None, model: str
) -> dict[str, Any]:
    return {
        **vars(counts),
        "dimensions": encoder.width(truncate_dim),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(computed / seconds) if seconds else 0,
        "model": model,
        "precision": encoder.precision.name,
        "device": str(encoder.device),
    }


def _sentence(summary: dict[str, Any]) -> str:
    cut = f" ({summary['truncated']:,} cut to the model's length)" if summary["truncated"] else ""
    return (
        f"{summary['texts']:,} texts{cut}, {summary['tokens']:,} tokens in {summary['seconds']:.2f} s: "
        f"{summary['tokens_per_second']:,} tokens/s in {summary['precision']}, "
        f"vectors of {summary['dimensions']} numbers to {summary['output'] or 'standard output'}"
    )
