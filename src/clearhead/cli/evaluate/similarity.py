"""`clearhead evaluate similarity`: do cosines follow what people said?"""

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
        Path, typer.Argument(metavar="FILE.csv", help="Text, text, score; a header line may stand first.")
    ],
    model: options.Model = options.DEFAULT_MODEL,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Spearman and Pearson correlation of cosines with scores (semantic textual similarity)."""
    from clearhead.metrics.similarity import evaluate_similarity, line_of_pair, read_pairs

    first, second, scores = read_pairs(source)
    from clearhead.finite import naming
    from clearhead.pipelines.text_encoder import TextEncoder

    encoder = TextEncoder.from_pretrained(model, precision=precision.value, device=device)

    def vectors(texts: "Sequence[str]") -> "Vectors":
        with naming(where=lambda index: f"{source}, line {line_of_pair(source, index % len(first))}"):
            return encoder.encode(texts, show_progress=not quiet and sys.stderr.isatty())

    result = evaluate_similarity(vectors, first, second, scores)
    if as_json:
        typer.echo(json.dumps(asdict(result), allow_nan=False))
    else:
        typer.echo(f"Spearman {result.spearman:.4f}  Pearson {result.pearson:.4f}  ({result.pairs:,} pairs)")
