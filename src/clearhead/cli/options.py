"""Options that several verbs share."""

from enum import StrEnum
from typing import Annotated

import typer


class PrecisionOption(StrEnum):
    """Numbers to compute with."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


Model = Annotated[
    str,
    typer.Option("--model", "-m", help="A model's folder, or its id on the Hugging Face Hub.", metavar="MODEL"),
]
Seq2SeqModel = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="An encoder–decoder's folder, or its id on the Hugging Face Hub.", metavar="MODEL"
    ),
]
Translator = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="An encoder–decoder's folder, or its id on the Hugging Face Hub; by default the small one inside the "
        "package, which translates everyday English into German.",
        metavar="MODEL",
    ),
]
SPAN_MODEL = "A model with a span head, or an encoder–decoder that writes answers: its folder, or its id on the Hub."
Column = Annotated[
    str | None,
    typer.Option(
        help='The column that holds the texts: in .jsonl and .parquet files its name, "text" by default; in .csv and '
        ".tsv files its name in the first line, or its number from 0 where the first line is data."
    ),
]
BeamSize = Annotated[
    int | None, typer.Option(help="Hypotheses that are kept at each step. Default: as the model says, else 5.")
]
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Longest output, in tokens. Default: as the model says, else 256.")
]
SourceLang = Annotated[str | None, typer.Option(help="The language of the input, for models that are told it.")]
TargetLang = Annotated[str | None, typer.Option(help="The language of the output, for models that are told it.")]
MinNewTokens = Annotated[
    int | None, typer.Option(help="Shortest output, in tokens. Default: as the model says, else any.")
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(help="Above 0 favours long outputs, below short ones. Default: as the model says, else 1."),
]
Precision = Annotated[
    PrecisionOption,
    typer.Option(help="Numbers to compute with; auto is bfloat16 where the processor multiplies it fast."),
]
Device = Annotated[str, typer.Option(help='"auto", "cpu", "cuda", "mps" ...')]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT_MODEL = "all-MiniLM-L6-v2"
TRANSLATOR = "tatoeba-en-de"
