"""Options and files that the evaluations of generated texts share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.outputs import lock_output
from clearhead.cli.text.translate import one_line
from clearhead.io.atomic import atomic_file

References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        "-r",
        metavar="FILE",
        help="Reference texts, one per line. Repeat the option for several references.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="MODEL", help="Folder or Hugging Face Hub id of an encoder–decoder."),
]
Hypotheses = Annotated[Path | None, typer.Option(metavar="FILE", help="Existing outputs to score, one per line.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the outputs in the format of --hypotheses.")
]


def claim_output(
    context: typer.Context, output: Path | None, hypotheses: Path | None, inputs: Sequence[Path | None]
) -> None:
    """Claim the output file.

    Raises:
        ValueError: --hypotheses is given too, the file is one of the inputs, or it cannot be written.
    """
    if output is not None and hypotheses is not None:
        raise ValueError("--output requires --model; with --hypotheses the outputs are already in a file")
    if output is not None:
        lock_output(context, output, inputs)


def read_aligned(files: Sequence[Path]) -> list[list[str]]:
    """Return the lines of files that are aligned line by line.

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the files have different numbers of lines.
    """
    from clearhead.data.records import Records

    fields = [str(number) for number in range(len(files))]
    rows = list(Records(dict(zip(fields, files, strict=True)), fields=fields))
    return [[row.values[field] for row in rows] for field in fields]


def write_lines(output: Path, texts: Sequence[str]) -> None:
    """Write texts to a file, one per line, atomically."""
    with atomic_file(output) as file:
        file.write("".join(f"{one_line(text)}\n" for text in texts).encode("utf-8"))
