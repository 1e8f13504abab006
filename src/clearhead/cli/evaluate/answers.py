"""`clearhead evaluate answers`: exact match and F1 of question answering."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.outputs import lock_output
from clearhead.io.atomic import atomic_file

if TYPE_CHECKING:
    from clearhead.data.squad import AnswerData


def answers(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="DATA.json[.gz]", help="Questions in the format of SQuAD 1.1 or 2.0.")
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help=options.SPAN_MODEL),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Existing answers: a JSON object from question ids to texts."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.json", help="Write the answers of the model in the format of --predictions."
        ),
    ] = None,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute exact match and F1 of answers in percent, by the official rules of SQuAD 1.1 or 2.0.

    The rules of 2.0 apply if the data declares version 2 or a question has no answer. The model may then return an
    empty answer.
    """
    from clearhead.data.squad import read_predictions, read_questions
    from clearhead.metrics.squad import answer_scores

    if (model is None) == (predictions is None):
        raise ValueError("give either --model or --predictions")
    if output is not None and model is None:
        raise ValueError("--output requires --model; with --predictions the answers are already in a file")
    if output is not None:
        lock_output(context, output, [source])
    data = read_questions(source)
    if predictions is not None:
        predicted = read_predictions(predictions)
    else:
        predicted = _answer_questions(
            data, source, str(model), precision, device, show_progress=not quiet and sys.stderr.isatty()
        )
    if output is not None:
        with atomic_file(output) as file:
            file.write((json.dumps(predicted, ensure_ascii=False) + "\n").encode("utf-8"))
    try:
        scores = answer_scores(data, predicted)
    except ValueError as error:  # only other predictions than the model's
        raise ValueError(f"{predictions}: {error}") from None
    if as_json:
        typer.echo(json.dumps(asdict(scores), allow_nan=False))
        return
    for name, part in (("all", scores), ("with an answer", scores.has_answer), ("without an answer", scores.no_answer)):
        if part is not None:
            line = f"EM {part.exact_match:6.2f}  F1 {part.f1:6.2f}  ({part.questions:,} questions"
            typer.echo(f"{line})" if name == "all" else f"{line} {name})")


def _answer_questions(
    data: "AnswerData",
    source: Path,
    model: str,
    precision: options.PrecisionOption,
    device: str,
    *,
    show_progress: bool,
) -> dict[str, str]:
    from clearhead.finite import NonFiniteError, error_context
    from clearhead.pipelines.question_answerer import QuestionAnswerer

    answerer = QuestionAnswerer.from_pretrained(model, precision=precision.value, device=device)
    pairs = [(question.question, question.context) for question in data.questions]
    try:
        with error_context(location=lambda index: f"{source}, question {data.questions[index].id}"):
            answers = answerer.answers(pairs, allow_no_answer=data.rules == "2.0", show_progress=show_progress)
    except NonFiniteError:
        raise
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return {question.id: answer.text for question, answer in zip(data.questions, answers, strict=True)}
