"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class PrecisionOption(StrEnum):
    """Precision of the computation."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Model folder or Hugging Face Hub id.", metavar="MODEL"),
]
Translator = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Folder or Hugging Face Hub id of an encoder–decoder. Default: the bundled model for everyday English to "
        "German.",
        metavar="MODEL",
    ),
]
SPAN_MODEL = (
    "Folder or Hugging Face Hub id of a model with a span head, or of an encoder–decoder that generates answers."
)
Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|FILE",
        help="Texts, or files: UTF-8 text with one text per line, .jsonl, .parquet, .arrow, .csv or .tsv, or a "
        "folder of Hugging Face datasets. Default, and for -: standard input.",
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Output file, written atomically. Default: standard output.")
]
Column = Annotated[
    str | None,
    typer.Option(
        help='Column with the texts of .jsonl, .parquet, .arrow, .csv and .tsv files. Default: "text". If a .csv or '
        ".tsv file has no header, give the index of the column, from 0."
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(metavar="COLUMNS", help="Other columns to copy to JSON lines and Parquet, separated by commas."),
]
KeepInJson = Annotated[
    str | None,
    typer.Option(metavar="COLUMNS", help="With --json: other columns to copy to each line, separated by commas."),
]
BeamSize = Annotated[
    int | None, typer.Option(min=1, help="Number of beams. Default: the setting of the model, else 5.")
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum length of an output in tokens. Default: the setting of the model, else 256."),
]
SourceLang = Annotated[
    str | None, typer.Option("--source-lang", help="Language of the input, for multilingual models.")
]
TargetLang = Annotated[
    str | None, typer.Option("--target-lang", help="Language of the output, for multilingual models.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        "--source-lang",
        help="Language of the input: en, de or auto for the bundled models; a code of a multilingual model. Default: "
        "auto, the language of each text.",
    ),
]
To = Annotated[
    str | None,
    typer.Option("--to", "--target-lang", help="Language of the output: de or en, or a code of a multilingual model."),
]
MinNewTokens = Annotated[
    int | None,
    typer.Option(min=0, help="Minimum length of an output in tokens. Default: the setting of the model, else 0."),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="Exponent of the length normalization: positive favors long outputs, negative short ones. Default: the "
        "setting of the model, else 1."
    ),
]
Precision = Annotated[
    PrecisionOption,
    typer.Option(
        help="Precision of the computation. auto uses the model's 8-bit weights, if `clearhead quantize` made them, "
        "else bfloat16 if the processor has fast bfloat16 matmuls. int8 is the fastest one on CPUs without AMX."
    ),
]
StrictPrecision = Annotated[
    bool, typer.Option("--strict", help="Raise an error if this machine or model cannot compute in --precision.")
]
Shortlist = Annotated[
    bool | None,
    typer.Option(
        "--shortlist/--no-shortlist",
        help="Limit the tokens of an output to those of the model's shortlist, which `clearhead shortlist` makes. "
        "Faster, with slightly different outputs. Default: for the bundled model in 8 bits.",
    ),
]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda, mps ...")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT_MODEL = "all-MiniLM-L6-v2"
TRANSLATOR = "tatoeba-en-de"
