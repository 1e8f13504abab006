"""`clearhead export`: a model in another format."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class FormatOption(StrEnum):
    """Whose format."""

    onnx = "onnx"
    transformers = "transformers"
    sentence_transformers = "sentence-transformers"
    ctranslate2 = "ctranslate2"


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder, or its id on the Hugging Face Hub.")],
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; one that is there is replaced.")],
    to: Annotated[FormatOption, typer.Option(help="The format.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights in 8 bits (onnx, ctranslate2); for onnx what it costs is said.")
    ] = False,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Texts to compare ONNX graphs on with the model, one a line; a few are built in."
        ),
    ] = None,
) -> None:
    """Write a model in another format. ONNX graphs are first compared with the model, and must agree."""
    if int8 and to not in (FormatOption.onnx, FormatOption.ctranslate2):
        raise ValueError(f"--int8 is for onnx and ctranslate2; {to.value} holds float32")
    if texts is not None and to is not FormatOption.onnx:
        raise ValueError("--texts is for onnx")
    if to is FormatOption.onnx:
        _onnx(model, folder, int8, texts)
    else:
        from clearhead.export import folders

        if to is FormatOption.transformers:
            folders.to_transformers(model, folder)
        elif to is FormatOption.sentence_transformers:
            folders.to_sentence_transformers(model, folder)
        else:
            error = folders.to_ctranslate2(model, folder, int8=int8)
            typer.echo(f"in float32: at most {error:.1e} from the model, of the largest number", err=True)
    typer.echo(f"wrote {folder}", err=True)


def _onnx(model: str, folder: Path, int8: bool, texts: Path | None) -> None:
    from clearhead.export.onnx import export as run
    from clearhead.export.texts import TEXTS
    from clearhead.text.corpus import Corpus

    given = TEXTS if texts is None else tuple(Corpus([str(texts)]))
    written = run(model, folder, int8=int8, texts=given)
    for name, error in written.error.items():
        typer.echo(f"{name}.onnx: at most {error:.1e} from the model, of the largest number", err=True)
    for name, value in written.loss.items():
        typer.echo(f"8 bits: {name} {value:.4f}", err=True)
