"""`clearhead convert`: a model's pickled weights as safetensors."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A model's folder with a pytorch_model.bin.")],
) -> None:
    """Write a model's pickled weights as safetensors, reading the pickle without running its code."""
    from clearhead.checkpoints import directory

    typer.echo(f"wrote {directory.convert(folder)}", err=True)
