"""`clearhead evaluate classification`: accuracy, macro F1, and the scores of each label."""

import contextlib
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.outputs import json_line, lock_output
from clearhead.io.atomic import atomic_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clearhead.data.records import Row
    from clearhead.metrics.classification import ClassificationScores
    from clearhead.pipelines.text_classifier import Classification

Source = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Texts with labels: .tsv, .csv, .jsonl, .parquet or .arrow, or a folder of Hugging Face datasets.",
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        help="Column with the texts: its name, or its index from 0 in .csv and .tsv files without a header. "
        'Default: as in training, namely the column in the recipe of the model, else "text"; in .csv and .tsv '
        "files without a header the first of two columns."
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        help="Column with the labels. Default: as in training, namely the column in the recipe of the model, else "
        '"label"; in .csv and .tsv files without a header the second of two columns.'
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.jsonl",
        help="Write text, label, predicted label and its probability of each row as JSON lines.",
    ),
]
Encoding = Annotated[str, typer.Option(help="Encoding of the file, such as latin-1.")]


def classification(
    context: typer.Context,
    source: Source,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="Folder or Hugging Face Hub id of a classifier.")
    ],
    column: TextColumn = None,
    label_column: LabelColumn = None,
    output: Output = None,
    encoding: Encoding = "utf-8",
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the confusion matrix.")] = False,
) -> None:
    """Compute accuracy, macro F1, and precision, recall and F1 of each label, in percent."""
    from clearhead.data.records import Records
    from clearhead.metrics.classification import check_labels, classification_scores, label_of

    if output is not None:
        if output.suffix != ".jsonl":
            raise ValueError(f"{output}: the predictions are JSON lines; the name must end in .jsonl")
        lock_output(context, output, [source])
    names = {"text": column, "label": label_column}
    columns = {field: int(name) if name.isdecimal() else name for field, name in names.items() if name is not None}
    columns = columns or _columns_of_recipe(model)
    rows = list(Records(source, fields=["text", "label"], columns=columns, encoding=encoding))
    # the same conversion as in training
    labels = [label_of(row) for row in rows]
    from clearhead.finite import error_context
    from clearhead.pipelines.text_classifier import TextClassifier

    classifier = TextClassifier.from_pretrained(model, precision=precision.value, device=device)
    if classifier.model.head_config.problem == "multi_label_classification":
        raise ValueError("this is a multi-label model; accuracy requires exactly one label per text")
    check_labels(labels, classifier.labels, [row.location for row in rows])
    with error_context(location=lambda index: rows[index].location):
        predicted = list(classifier.stream(row.values["text"] for row in rows))
    if output is not None:
        _write_predictions(output, rows, labels, predicted)
    scores = classification_scores([result.label for result in predicted], labels, labels=classifier.labels)
    typer.echo(json.dumps(asdict(scores), ensure_ascii=False, allow_nan=False) if as_json else _table(scores))


def _write_predictions(
    output: Path, rows: "Sequence[Row]", labels: "Sequence[str]", predicted: "Sequence[Classification]"
) -> None:
    with atomic_file(output) as file:
        for row, label, result in zip(rows, labels, predicted, strict=True):
            prediction = {"predicted": result.label, "probability": result.probability}
            line = json_line({"text": row.values["text"], "label": label, **prediction}, {})
            file.write(f"{line}\n".encode())


def _columns_of_recipe(model: str) -> dict[str, str | int]:
    """Return the columns in the recipe that a run wrote into its folder; {} for other models."""
    path = Path(model) / "recipe.yaml"
    if not path.is_file() or importlib.util.find_spec("pydantic") is None or importlib.util.find_spec("yaml") is None:
        return {}
    from clearhead.train.recipe.load import read_recipe

    with contextlib.suppress(ValueError):  # a recipe of another program or version
        recipe = read_recipe(path)
        return dict(recipe.data.columns or {}) if recipe.task == "classification" else {}
    return {}


def _table(scores: "ClassificationScores") -> str:
    lines = [f"accuracy {scores.accuracy:.2f}  macro F1 {scores.macro_f1:.2f}  ({scores.texts:,} texts)", ""]
    width = max(map(len, [*scores.labels, "label"]))
    lines.append(f"{'label':{width}}  precision  recall      F1  texts")
    for label, score in scores.labels.items():
        lines.append(
            f"{label:{width}}  {score.precision:9.2f}  {score.recall:6.2f}  {score.f1:6.2f}  {score.support:5,}"
        )
    return "\n".join(lines)
