"""`clearhead evaluate classification`: accuracy, and the scores of each label."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options

if TYPE_CHECKING:
    from clearhead.metrics.classification import ClassificationScores


def classification(
    source: Annotated[
        Path, typer.Argument(metavar="DATA", help="Texts with labels: .tsv (text, tab, label), .csv, .jsonl, .parquet.")
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="A classifier's folder, or its id on the Hub.")
    ],
    text_column: Annotated[
        str | None,
        typer.Option(
            help="The column of texts: its name, which the first line of .csv and .tsv holds then, or there its number "
            'from 0. Default: "text", in .csv and .tsv the first of two columns.'
        ),
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help='The column of labels, likewise. Default: "label", or the second of two columns.')
    ] = None,
    encoding: Annotated[str, typer.Option(help="The file's encoding, such as latin-1.")] = "utf-8",
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the confusion matrix.")] = False,
) -> None:
    """Accuracy, macro F1, and precision, recall and F1 of each label, in percent."""
    from clearhead.data.records import Records
    from clearhead.metrics.classification import check_labels, classification_scores, label_of

    given = {"text": text_column, "label": label_column}
    columns = {field: int(name) if name.isdecimal() else name for field, name in given.items() if name is not None}
    rows = list(Records(source, fields=["text", "label"], columns=columns, encoding=encoding))
    # as in training
    labels = [label_of(row) for row in rows]
    from clearhead.finite import naming
    from clearhead.pipelines.text_classifier import TextClassifier

    classifier = TextClassifier.from_pretrained(model, precision=precision.value, device=device)
    if classifier.model.head_config.problem == "multi_label_classification":
        raise ValueError("this model judges each label for itself; accuracy is for models with one right label a text")
    check_labels(labels, classifier.labels, [row.location for row in rows])
    with naming(where=lambda index: rows[index].location):
        said = [one.label for one in classifier.stream(row.values["text"] for row in rows)]
    scores = classification_scores(said, labels, labels=classifier.labels)
    typer.echo(json.dumps(asdict(scores), ensure_ascii=False, allow_nan=False) if as_json else _table(scores))


def _table(scores: "ClassificationScores") -> str:
    lines = [f"accuracy {scores.accuracy:.2f}  macro F1 {scores.macro_f1:.2f}  ({scores.texts:,} texts)", ""]
    width = max(map(len, [*scores.labels, "label"]))
    lines.append(f"{'label':{width}}  precision  recall      F1  texts")
    for label, one in scores.labels.items():
        lines.append(f"{label:{width}}  {one.precision:9.2f}  {one.recall:6.2f}  {one.f1:6.2f}  {one.support:5,}")
    return "\n".join(lines)
