"""`clearhead encode`: encode texts as vectors."""

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli import options
from clearhead.cli.outputs import kept_columns, shows_progress, window_texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from clearhead.corpus.encode import EncodingStats
    from clearhead.corpus.ray_workers import EncodingJob
    from clearhead.data.corpus import Corpus
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.runtime.vectors import EncodeOptions


class PoolingOption(StrEnum):
    """Pooling of the hidden states."""

    mean = "mean"
    cls = "cls"
    max = "max"


class EngineOption(StrEnum):
    """Engine that encodes the texts."""

    local = "local"
    ray = "ray"


class ErrorsOption(StrEnum):
    """Handling of bytes that are not UTF-8."""

    strict = "strict"
    substitute = "replace"


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help=".npy, .jsonl or .parquet file; with --engine ray a folder. Default: JSON lines on standard output.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Resume an interrupted run with the same --output. --engine ray always resumes."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Discard an interrupted run with the same --output.")]
Pooling = Annotated[PoolingOption | None, typer.Option(help="Pooling. Default: the setting of the model.")]
Normalize = Annotated[
    bool | None,
    typer.Option("--normalize/--no-normalize", help="Scale vectors to length 1. Default: the setting of the model."),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of tokens of a text; longer texts are truncated. Default: the setting of the model."
    ),
]
Prompt = Annotated[str | None, typer.Option(help="Name of a prompt of the model, or a text to prepend to each text.")]
Adapter = Annotated[
    str | None,
    typer.Option(help="Task whose adapter is merged into the weights, such as retrieval.query of jina-embeddings-v3."),
]
TruncateDim = Annotated[int | None, typer.Option(help="Keep only the first dimensions of each vector.")]
BatchTokens = Annotated[
    int | None, typer.Option(help="Maximum number of tokens in a batch. Default: depends on the device.")
]
Engine = Annotated[
    EngineOption,
    typer.Option(help="ray: encode each input file to a Parquet file, on all machines of a Ray cluster."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of processes with --engine ray. Default: as many as fit on the cluster."),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile", help="Compile part of the model with torch.compile. The compiled code is cached between runs."
    ),
]
Errors = Annotated[
    ErrorsOption, typer.Option(help="Handling of bytes that are not UTF-8: raise an error, or replace them.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar and no summary.")]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the summary as JSON: on standard output with --output, else on standard error."),
]


def encode(
    sources: options.Texts = None,
    output: Output = None,
    model: options.Model = options.DEFAULT_MODEL,
    column: options.Column = None,
    keep: options.Keep = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    pooling: Pooling = None,
    normalize: Normalize = None,
    max_length: MaxLength = None,
    prompt: Prompt = None,
    adapter: Adapter = None,
    truncate_dim: TruncateDim = None,
    batch_tokens: BatchTokens = None,
    engine: Engine = EngineOption.local,
    workers: Workers = None,
    precision: options.Precision = options.PrecisionOption.auto,
    strict: options.StrictPrecision = False,
    device: options.Device = "auto",
    compile: Compile = False,
    errors: Errors = ErrorsOption.strict,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Encode texts as vectors. The input is streamed and can be of any size."""
    from clearhead.cli.inputs import texts_of

    names = kept_columns(keep, columns=("text", "embedding"))
    corpus = texts_of(sources or [], column=column, errors=errors.value, keep=names)
    _check_options(corpus, output, resume, overwrite, engine, workers)
    # the checks above need no torch, whose import is slow
    from clearhead.corpus.ray_workers import EncodingJob
    from clearhead.runtime.compile import use_persistent_cache
    from clearhead.runtime.precision import strict_precision
    from clearhead.runtime.vectors import EncodeOptions

    if compile:
        use_persistent_cache()
    encode_options = EncodeOptions(
        pooling=None if pooling is None else pooling.value,
        normalize=normalize,
        max_length=max_length,
        batch_tokens=batch_tokens,
        prompt=prompt,
        truncate_dim=truncate_dim,
    )
    job = EncodingJob(model, encode_options, precision.value, device, column, errors.value, compile, names, adapter)
    with strict_precision(strict):
        encoder, start = job.encoder(), time.perf_counter()
    stats, num_tokens = _run(encoder, job, corpus, output, (resume, overwrite), workers, engine, quiet)
    summary = _summary(encoder, stats, num_tokens, time.perf_counter() - start, truncate_dim, model)
    summary["output"] = None if output is None else str(output)
    if as_json:
        typer.echo(json.dumps(summary, allow_nan=False), err=output is None)
    elif not quiet and (stats.texts or output is not None):
        typer.echo(_summary_line(summary), err=True)


def _run(
    encoder: "TextEncoder",
    job: "EncodingJob",
    corpus: "Corpus",
    output: Path | None,
    resume_or_overwrite: tuple[bool, bool],
    workers: int | None,
    engine: EngineOption,
    quiet: bool,
) -> "tuple[EncodingStats, int]":
    """Encode the corpus; return the statistics and the number of tokens that this run encoded."""
    from clearhead.corpus.encode import encode_corpus
    from clearhead.corpus.ray_shards import encode_shards
    from clearhead.runtime.progress import token_progress

    num_tokens = 0
    with token_progress(corpus.total_bytes, not quiet and shows_progress(output)) as update_bar:

        def on_step(done: int, tokens: int, texts: int) -> None:
            nonlocal num_tokens
            num_tokens += tokens
            update_bar(done, tokens, texts)

        if output is None:
            stats = _write_standard_output(encoder, corpus, job.options, on_step)
        elif engine is EngineOption.ray:
            stats = encode_shards(corpus.sources, output, job, encoder, workers=workers, on_step=on_step)
        else:
            resume, overwrite = resume_or_overwrite
            stats = encode_corpus(
                encoder, corpus, output, job.options, resume=resume, overwrite=overwrite, on_step=on_step
            )
    return stats, num_tokens


def _check_options(
    corpus: "Corpus", output: Path | None, resume: bool, overwrite: bool, engine: EngineOption, workers: int | None
) -> None:
    from clearhead.corpus.writers import check_output

    if resume and overwrite:
        raise ValueError("give --resume to continue an interrupted run, or --overwrite to discard it, not both")

    if workers is not None and engine is EngineOption.local:
        raise ValueError("--workers requires --engine ray")
    if engine is EngineOption.ray:
        if output is None or not corpus.sources:
            raise ValueError("--engine ray requires input files and a folder as --output")
        if overwrite:
            raise ValueError(f"--engine ray always resumes; to start from scratch, remove {output}")
    elif output is not None:
        check_output(output, corpus.keep)
    elif resume or overwrite:
        raise ValueError(f"--{'resume' if resume else 'overwrite'} requires --output")


def _write_standard_output(
    encoder: "TextEncoder",
    corpus: "Corpus",
    encode_options: "EncodeOptions",
    on_step: "Callable[[int, int, int], None]",
) -> "EncodingStats":
    from clearhead.corpus.encode import EncodingStats, locate_errors
    from clearhead.corpus.writers import json_lines
    from clearhead.runtime.progress import BatchProgress
    from clearhead.runtime.streaming import WINDOW_TEXTS

    stats, progress = EncodingStats(), BatchProgress(corpus, on_step)
    window = window_texts(corpus, WINDOW_TEXTS)
    batches = encoder.stream(corpus, encode_options, window=window, on_batch=progress.on_batch)
    for batch in locate_errors(batches, corpus):
        for line in json_lines(batch.texts, batch.vectors, corpus.take_kept(len(batch.texts))):
            sys.stdout.buffer.write(line.encode("utf-8"))
        sys.stdout.buffer.flush()
        stats = stats.add_batch(batch)
    progress.finish()
    return stats


def _summary(
    encoder: "TextEncoder",
    stats: "EncodingStats",
    num_tokens: int,
    seconds: float,
    truncate_dim: int | None,
    model: str,
) -> dict[str, Any]:
    return {
        **vars(stats),
        "dimensions": encoder.width(truncate_dim),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(num_tokens / seconds) if seconds else 0,
        "model": model,
        "precision": encoder.precision.name,
        "device": str(encoder.device),
    }


def _summary_line(summary: dict[str, Any]) -> str:
    truncated = f" ({summary['truncated']:,} truncated)" if summary["truncated"] else ""
    return (
        f"{summary['texts']:,} text{'' if summary['texts'] == 1 else 's'}{truncated}, {summary['tokens']:,} tokens in "
        f"{summary['seconds']:.2f} s: {summary['tokens_per_second']:,} tokens/s in {summary['precision']}, "
        f"{summary['dimensions']}-dimensional vectors to {summary['output'] or 'standard output'}"
    )
