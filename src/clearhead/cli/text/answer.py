"""`clearhead answer`: answer a question from a text."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli import options
from clearhead.cli.inputs import is_file, read_document
from clearhead.data.corpus import source_name

if TYPE_CHECKING:
    from clearhead.pipelines.answering.answers import Answer


_SUGGESTION = (
    "answer needs a model. For English: --model distilbert/distilbert-base-cased-distilled-squad, which is downloaded "
    "from the Hugging Face Hub once (260 MB); with --no-answer: deepset/roberta-base-squad2 (500 MB)"
)


def answer(
    question: Annotated[str, typer.Option(metavar="TEXT", help="Question.")],
    context: Annotated[
        str,
        typer.Option(
            metavar="TEXT|FILE", help="Text, or UTF-8 file of any length, with the answer; - is standard input."
        ),
    ],
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help=options.SPAN_MODEL)] = None,
    n_best: Annotated[int, typer.Option(min=1, help="Number of answers, best first, one per line.")] = 1,
    no_answer: Annotated[
        bool,
        typer.Option(
            "--no-answer", help="Print an empty line if the context has no answer. Requires a model trained for it."
        ),
    ] = False,
    max_answer_length: Annotated[int, typer.Option(min=1, help="Maximum number of tokens in an answer.")] = 30,
    stride: Annotated[
        int, typer.Option(min=0, help="Number of tokens shared by neighboring windows of a long context.")
    ] = 128,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON with the score of the answer and its character offsets.")
    ] = False,
) -> None:
    """Answer a question from a text."""
    if model is None:
        raise ValueError(_SUGGESTION)
    text = read_document(context)
    from clearhead.finite import error_context
    from clearhead.pipelines.question_answerer import QuestionAnswerer

    answerer = QuestionAnswerer.from_pretrained(model, precision=precision.value, device=device)
    place = source_name(context) if is_file(context) else "--context"
    if not text.strip():
        raise ValueError(f"{place} is blank; expected words")
    with error_context(location=[place].__getitem__):
        result = answerer.answer(
            question,
            text,
            n_best=n_best,
            allow_no_answer=no_answer,
            max_answer_length=max_answer_length,
            stride=stride,
        )
    if as_json:
        n_best_answers = {"n_best": [_to_dict(item) for item in result.n_best]} if result.n_best else {}
        lines = [json.dumps(_to_dict(result) | n_best_answers, ensure_ascii=False, allow_nan=False)]
    else:
        # an answer can span several lines of the context
        lines = [" ".join(item.text.split()) for item in result.n_best or (result,)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _to_dict(answer: "Answer") -> dict[str, Any]:
    return {"text": answer.text, "score": answer.score, "start": answer.start, "end": answer.end}
