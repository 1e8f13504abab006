"""What scores of texts against references have in common on the command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.translate import one_line
from clearhead.files import check_place, whole_file

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


def check_place_of_outputs(output: Path | None, hypotheses: Path | None) -> None:
    """Raises a ValueError where outputs are asked for that are there already, or that cannot be written."""
    if output is not None and hypotheses is not None:
        raise ValueError("--output takes a model's outputs; with --hypotheses they are in a file already")
    if output is not None:
        check_place(output)


def read_lines(path: Path) -> list[str]:
    """The lines of a file.

    Raises:
        ValueError: no such file, not UTF-8, or no lines.
    """
    from clearhead.text.corpus import Corpus

    lines = list(Corpus([path]))
    if not lines:
        raise ValueError(f"{path} is empty; a line for each text is wanted")
    return lines


def check_lengths(files: Mapping[Path, Sequence[str]]) -> None:
    """Raises a ValueError where files that are read beside each other have different numbers of lines."""
    (first, lines), *others = files.items()
    for path, some in others:
        if len(some) != len(lines):
            raise ValueError(
                f"{first} has {len(lines):,} lines and {path} has {len(some):,}; a line of one belongs to that line of "
                "the other"
            )


def write_lines(output: Path, texts: Sequence[str]) -> None:
    """Texts as a file with a line for each, which appears whole or not at all."""
    with whole_file(output) as file:
        file.write("".join(f"{one_line(text)}\n" for text in texts).encode("utf-8"))
