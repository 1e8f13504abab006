"""`clearhead classify`: classify texts."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from clearhead.cli import options
from clearhead.cli.text.encode import ErrorsOption


def classify(
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="Folder or Hugging Face Hub id of a classifier.")
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...",
            help="Text files (UTF-8, one text per line), .jsonl, .parquet, .csv or .tsv files; - is standard input.",
        ),
    ] = None,
    column: options.Column = None,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    errors: Annotated[
        ErrorsOption, typer.Option(help="Handling of bytes that are not UTF-8: raise an error, or replace them.")
    ] = (ErrorsOption.strict),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines with the probabilities of all labels.")
    ] = False,
) -> None:
    """Print the most probable label of each text and its probability, one line per text."""
    from clearhead.data.corpus import Corpus

    corpus = Corpus(sources or ["-"], column=column, errors=errors.value)
    from clearhead.finite import error_context
    from clearhead.pipelines.text_classifier import TextClassifier

    classifier = TextClassifier.from_pretrained(model, precision=precision.value, device=device)
    with error_context(location=corpus.location):
        for result in classifier.stream(corpus):
            line = f"{result.label}\t{result.probability:.4f}"
            if as_json:
                line = json.dumps(asdict(result), ensure_ascii=False, allow_nan=False)
            sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
