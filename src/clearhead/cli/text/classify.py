"""`clearhead classify`: classify texts."""

from dataclasses import asdict
from typing import Annotated

import typer

from clearhead.cli import options
from clearhead.cli.outputs import check_lines_output, json_line, kept_columns, lock_output, window_texts, write_results
from clearhead.cli.text.encode import ErrorsOption

_SUGGESTION = (
    "classify needs a model. For the sentiment of English texts: --model "
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english, which is downloaded from the Hugging Face Hub once. "
    "For other labels: train a classifier with `clearhead train`"
)
_FIELDS = ("label", "probability", "probabilities", "truncated")
"""Fields of a JSON line."""


def classify(
    context: typer.Context,
    sources: options.Texts = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="Folder or Hugging Face Hub id of a classifier."),
    ] = None,
    output: options.Output = None,
    column: options.Column = None,
    keep: options.KeepInJson = None,
    precision: options.Precision = options.PrecisionOption.float32,
    strict: options.StrictPrecision = False,
    device: options.Device = "auto",
    errors: Annotated[
        ErrorsOption, typer.Option(help="Handling of bytes that are not UTF-8: raise an error, or replace them.")
    ] = (ErrorsOption.strict),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines with the probabilities of all labels.")
    ] = False,
) -> None:
    """Print the most probable label of each text and its probability, one line per text."""
    if model is None:
        raise ValueError(_SUGGESTION)
    from clearhead.cli.inputs import texts_of

    names = kept_columns(keep, columns=_FIELDS, as_json=as_json)
    corpus = texts_of(sources or [], column=column, errors=errors.value, keep=names)
    if output is not None:
        lock_output(context, output, corpus.sources)
        check_lines_output(output, as_json)
    from clearhead.pipelines.text_classifier import TextClassifier
    from clearhead.runtime.precision import strict_precision
    from clearhead.runtime.streaming import WINDOW_TEXTS

    with strict_precision(strict):
        classifier = TextClassifier.from_pretrained(model, precision=precision.value, device=device)

    written = write_results(
        corpus,
        output,
        lambda on_batch: classifier.stream(corpus, window=window_texts(corpus, WINDOW_TEXTS), on_batch=on_batch),
        lambda result, kept: (
            json_line(asdict(result), kept) if as_json else f"{result.label}\t{result.probability:.4f}"
        ),
        description="classifying",
    )
    truncated = [result.truncated for result in written]
    if any(truncated):
        limit = f"the model's limit of {classifier.max_length} tokens"
        typer.echo(f"clearhead: {truncated.count(True)} of {len(truncated)} texts were truncated to {limit}", err=True)
