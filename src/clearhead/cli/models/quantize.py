"""`clearhead quantize`: write a copy of a model with 8-bit weights."""

from pathlib import Path
from typing import Annotated

import typer


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder or Hugging Face Hub id.")],
    folder: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Output folder: new, empty, or an earlier export, which is replaced."),
    ],
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Texts for the comparison with float32, one per line. Default: built-in sentences."
        ),
    ] = None,
) -> None:
    """Write a copy of a model with 8-bit weights, which loads faster and which auto uses if it is accurate."""
    from clearhead.export.int8 import quantize as write
    from clearhead.export.sample_texts import texts_or_samples
    from clearhead.runtime.int8.files import FILE, MIN_COSINE, MIN_MEAN_COSINE, is_accurate

    report = write(model, folder, texts=texts_or_samples(texts))
    for name, value in report.loss.items():
        typer.echo(f"{name} with float32: {value:.5f}", err=True)
    if not is_accurate(folder / FILE):
        typer.echo(
            f"the smallest is below {MIN_COSINE}, or the mean below {MIN_MEAN_COSINE}: --precision auto will not use "
            "these weights",
            err=True,
        )
    typer.echo(f"wrote {folder}", err=True)
