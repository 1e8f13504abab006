"""`clearhead answer`: a question answered from a text."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli import options
from clearhead.cli.text.summarize import read_text
from clearhead.data.corpus import source_name

if TYPE_CHECKING:
    from clearhead.pipelines.answers import Answer


def answer(
    model: Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help=options.SPAN_MODEL)],
    question: Annotated[str, typer.Option(metavar="TEXT", help="The question.")],
    context: Annotated[
        str, typer.Option(metavar="FILE", help="UTF-8 file of any length to answer it from; - is standard input.")
    ],
    n_best: Annotated[int, typer.Option(min=1, help="So many answers, best first, a line each.")] = 1,
    no_answer: Annotated[
        bool,
        typer.Option("--no-answer", help="An empty line where the context has no answer, for models trained to tell."),
    ] = False,
    max_answer_length: Annotated[int, typer.Option(min=1, help="Most tokens in an answer.")] = 30,
    stride: Annotated[int, typer.Option(min=0, help="Tokens that neighbouring windows of a long context share.")] = 128,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON with the answer's probability and its place, in characters.")
    ] = False,
) -> None:
    """The part of a text that answers a question."""
    text = read_text(context)
    from clearhead.finite import naming
    from clearhead.pipelines.question_answerer import QuestionAnswerer

    reader = QuestionAnswerer.from_pretrained(model, precision=precision.value, device=device)
    with naming(where=[source_name(context)].__getitem__):
        said = reader.answer(
            question,
            text,
            n_best=n_best,
            allow_no_answer=no_answer,
            max_answer_length=max_answer_length,
            stride=stride,
        )
    if as_json:
        found = {"n_best": [_as_data(one) for one in said.n_best]} if said.n_best else {}
        lines = [json.dumps(_as_data(said) | found, ensure_ascii=False, allow_nan=False)]
    else:
        # an answer may reach over the end of a line; it is still one answer
        lines = [" ".join(one.text.split()) for one in said.n_best or (said,)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _as_data(answer: "Answer") -> dict[str, Any]:
    return {"text": answer.text, "score": answer.score, "start": answer.start, "end": answer.end}
