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
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="The folder to write: a new one, an empty one, or an earlier export, which is replaced."
        ),
    ],
    to: Annotated[FormatOption, typer.Option(help="The format.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights in 8 bits (onnx, ctranslate2); what that costs is said.")
    ] = False,
    texts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Texts to compare on with the model, one a line; a few are built in."),
    ] = None,
) -> None:
    """Write a model in another format. It is opened by its own library first, compared, and must agree."""
    if int8 and to not in (FormatOption.onnx, FormatOption.ctranslate2):
        raise ValueError(f"--int8 is for onnx and ctranslate2; {to.value} holds float32")
    from clearhead.data.corpus import Corpus
    from clearhead.export import libraries
    from clearhead.export.onnx import export as to_onnx
    from clearhead.export.sample_texts import TEXTS

    given = TEXTS if texts is None else tuple(Corpus([str(texts)]))
    match to:
        case FormatOption.onnx:
            written = to_onnx(model, folder, int8=int8, texts=given)
        case FormatOption.ctranslate2:
            written = libraries.to_ctranslate2(model, folder, int8=int8, texts=given)
        case FormatOption.transformers:
            written = libraries.to_transformers(model, folder, texts=given)
        case FormatOption.sentence_transformers:
            written = libraries.to_sentence_transformers(model, folder, texts=given)
    for name, error in written.error.items():
        typer.echo(f"{name}: largest relative error {error:.1e}", err=True)
    for name, value in written.loss.items():
        typer.echo(f"8 bits: {name} {value:.4f}", err=True)
    if written.missing:
        typer.echo(f"not exported, because {to.value} cannot hold it: {written.missing}", err=True)
    typer.echo(f"wrote {folder}", err=True)
