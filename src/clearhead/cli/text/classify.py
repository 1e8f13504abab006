"""`clearhead classify`: a label for each text."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from clearhead.cli import options
from clearhead.cli.text.encode import ErrorsOption


def classify(
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="A classifier's folder, or its id on the Hub.")
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...",
            help="UTF-8 files with a text a line, .jsonl, .parquet, .csv or .tsv files; - is standard input.",
        ),
    ] = None,
    column: options.Column = None,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    errors: Annotated[ErrorsOption, typer.Option(help="What to do with bytes that are not UTF-8.")] = (
        ErrorsOption.strict
    ),
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines with the probabilities of all labels.")] = False,
) -> None:
    """The most probable label of each text and its probability, a line each, in order."""
    from clearhead.data.corpus import Corpus

    corpus = Corpus(sources or ["-"], column=column, errors=errors.value)
    from clearhead.finite import naming
    from clearhead.pipelines.text_classifier import TextClassifier

    classifier = TextClassifier.from_pretrained(model, precision=precision.value, device=device)
    with naming(where=corpus.location):
        for said in classifier.stream(corpus):
            line = f"{said.label}\t{said.probability:.4f}"
            if as_json:
                line = json.dumps(asdict(said), ensure_ascii=False, allow_nan=False)
            sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
