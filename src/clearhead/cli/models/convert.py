"""`clearhead convert`: a model's pickled weights as safetensors."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A model's folder with a pytorch_model.bin.")],
) -> None:
    """Write a model's pickled weights as safetensors, reading the pickle without running its code."""
    from clearhead.checkpoints.convert import convert as convert_weights

    typer.echo(f"wrote {convert_weights(folder)}", err=True)
