"""`clearhead evaluate similarity`: correlation of cosines with human similarity scores."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clearhead.runtime.vectors import Vectors


def similarity(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.csv", help="CSV file with two texts and a score per line, with or without a header."
        ),
    ],
    model: options.Model = options.DEFAULT_MODEL,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute the Spearman and Pearson correlation of cosines with scores (semantic textual similarity)."""
    from clearhead.metrics.similarity import UndefinedCorrelationError, evaluate_similarity, line_of_pair, read_pairs

    first, second, scores = read_pairs(source)
    from clearhead.finite import error_context
    from clearhead.pipelines.text_encoder import TextEncoder

    encoder = TextEncoder.from_pretrained(model, precision=precision.value, device=device)

    def encode(texts: "Sequence[str]") -> "Vectors":
        with error_context(location=lambda index: f"{source}, line {line_of_pair(source, index % len(first))}"):
            return encoder.encode(texts, show_progress=not quiet and sys.stderr.isatty())

    try:
        result = evaluate_similarity(encode, first, second, scores)
    except UndefinedCorrelationError as error:
        raise ValueError(f"{source}: {error}") from None
    if as_json:
        typer.echo(json.dumps(asdict(result), allow_nan=False))
    else:
        typer.echo(f"Spearman {result.spearman:.4f}  Pearson {result.pearson:.4f}  ({result.pairs:,} pairs)")
