"""`clearhead convert`: convert pickled weights to safetensors."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder with a pytorch_model.bin.")],
) -> None:
    """Convert pickled weights to safetensors. No code of the pickle is executed."""
    from clearhead.checkpoints.convert import convert as convert_weights

    typer.echo(f"wrote {convert_weights(folder)}", err=True)
