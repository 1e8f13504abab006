"""`clearhead encode`: texts, one a line, to vectors."""

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from clearhead.cli import options


class PoolingOption(StrEnum):
    """How hidden states become one vector."""

    mean = "mean"
    cls = "cls"
    max = "max"


class ErrorsOption(StrEnum):
    """What to do with bytes that are not UTF-8."""

    strict = "strict"
    substitute = "replace"


def encode(
    source: Annotated[
        str, typer.Argument(metavar="[INPUT]", help="A UTF-8 file, one text a line; - is standard input.")
    ] = "-",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="FILE.npy, .jsonl or .parquet; JSON lines to standard output without it."),
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    pooling: Annotated[PoolingOption | None, typer.Option(help="Default: as the model says.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Default: as the model says.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens after which a text is cut. Default: as the model says.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="The name of one of the model's prompts, or a text to put before each text."),
    ] = None,
    truncate_dim: Annotated[int | None, typer.Option(help="Keep the first columns only.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens in a batch, padding included.")] = None,
    precision: options.Precision = options.PrecisionOption.auto,
    device: options.Device = "auto",
    errors: Annotated[ErrorsOption, typer.Option(help="What to do with bytes that are not UTF-8.")] = (
        ErrorsOption.strict
    ),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="The summary as JSON: on standard output with --output, else on standard error."),
    ] = False,
) -> None:
    """Texts, one a line, to vectors."""
    from clearhead.run.writers import check_output, json_lines, write_vectors
    from clearhead.text.corpus import read_lines

    if output is not None:
        check_output(output)
    texts = list(read_lines(source, errors.value))
    # torch comes after what can go wrong without it
    from clearhead.run.encode import BATCH_TOKENS, TextEncoder

    encoder = TextEncoder.from_pretrained(model, precision=precision.value, device=device)
    start = time.perf_counter()
    tokens = encoder.tokenize(texts, max_length=max_length, prompt=prompt)
    vectors = encoder.vectors(
        tokens,
        pooling=None if pooling is None else pooling.value,
        normalize=normalize,
        batch_tokens=BATCH_TOKENS if batch_tokens is None else batch_tokens,
        prompt=prompt,
        truncate_dim=truncate_dim,
        show_progress=not quiet and sys.stderr.isatty(),
    )
    seconds = time.perf_counter() - start
    array = cast(Any, vectors)  # "tokens", which gives a list, is no choice here
    if output is not None:
        write_vectors(output, texts, array)
    else:
        for line in json_lines(texts, array):
            sys.stdout.buffer.write(line.encode("utf-8"))
        sys.stdout.buffer.flush()
    count = sum(len(text.ids) for text in tokens)
    summary = {
        "texts": len(texts),
        "tokens": count,
        "truncated": sum(text.truncated for text in tokens),
        "dimensions": array.shape[1],
        "seconds": round(seconds, 3),
        "tokens_per_second": round(count / seconds) if seconds else 0,
        "model": model,
        "precision": str(encoder.dtype).removeprefix("torch."),
        "device": str(encoder.device),
        "output": None if output is None else str(output),
    }
    if as_json:
        typer.echo(json.dumps(summary), err=output is None)
    elif not quiet:
        typer.echo(_sentence(summary), err=True)


def _sentence(summary: dict[str, Any]) -> str:
    cut = f" ({summary['truncated']:,} cut to the model's length)" if summary["truncated"] else ""
    return (
        f"{summary['texts']:,} texts{cut}, {summary['tokens']:,} tokens in {summary['seconds']:.2f} s: "
        f"{summary['tokens_per_second']:,} tokens/s in {summary['precision']}, "
        f"vectors of {summary['dimensions']} numbers to {summary['output'] or 'standard output'}"
    )
