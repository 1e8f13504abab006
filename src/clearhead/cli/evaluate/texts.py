"""What scores of texts against references have in common on the command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.outputs import claim
from clearhead.cli.text.translate import one_line
from clearhead.io.atomic import atomic_file

References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference", "-r", metavar="FILE", help="What people wrote, a line for each; several times for several."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", help="An encoder–decoder's folder, or its id on the Hugging Face Hub."
    ),
]
Hypotheses = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Outputs that are there already, a line for each reference.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the outputs as --hypotheses reads them.")
]


def claim_output(context: typer.Context, output: Path | None, hypotheses: Path | None) -> None:
    """Claim the file for a model's outputs.

    Raises:
        ValueError: the outputs are given as hypotheses already, or the file cannot be written.
    """
    if output is not None and hypotheses is not None:
        raise ValueError("--output takes a model's outputs; with --hypotheses they are in a file already")
    if output is not None:
        claim(context, output)


def read_beside(files: Sequence[Path]) -> list[list[str]]:
    """The lines of files of which line n of one belongs to line n of the others.

    Raises:
        ValueError: no such file, an empty one, one that is not UTF-8, or files of different length.
    """
    from clearhead.data.records import Records

    fields = [str(number) for number in range(len(files))]
    rows = list(Records(dict(zip(fields, files, strict=True)), fields=fields))
    return [[row.values[field] for row in rows] for field in fields]


def write_lines(output: Path, texts: Sequence[str]) -> None:
    """Texts as a file with a line for each, which appears whole or not at all."""
    with atomic_file(output) as file:
        file.write("".join(f"{one_line(text)}\n" for text in texts).encode("utf-8"))
