"""`clearhead export`: export a model to another format."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class FormatOption(StrEnum):
    """Export format."""

    onnx = "onnx"
    transformers = "transformers"
    sentence_transformers = "sentence-transformers"
    ctranslate2 = "ctranslate2"
    web = "web"


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder or Hugging Face Hub id.")],
    folder: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Output folder: new, empty, or an earlier export, which is replaced."),
    ],
    to: Annotated[FormatOption, typer.Option(help="Export format.")],
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Quantize weights to 8 bits (onnx, ctranslate2, web) and report the loss."),
    ] = False,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Texts for the comparison with the model, one per line. Default: built-in sentences."
        ),
    ] = None,
) -> None:
    """Export a model. The target library loads the export and must reproduce the model's outputs.

    The format web is a static page on which the model runs in the visitor's browser.
    """
    if int8 and to not in (FormatOption.onnx, FormatOption.ctranslate2, FormatOption.web):
        raise ValueError(f"--int8 is for onnx, ctranslate2 and web; {to.value} exports float32")
    from clearhead.export import libraries
    from clearhead.export.onnx import export as to_onnx
    from clearhead.export.sample_texts import texts_or_samples
    from clearhead.export.web.export import export_web

    samples = texts_or_samples(texts)
    match to:
        case FormatOption.onnx:
            report = to_onnx(model, folder, int8=int8, texts=samples)
        case FormatOption.ctranslate2:
            report = libraries.to_ctranslate2(model, folder, int8=int8, texts=samples)
        case FormatOption.transformers:
            report = libraries.to_transformers(model, folder, texts=samples)
        case FormatOption.web:
            report = export_web(model, folder, int8=int8, texts=samples)
        case FormatOption.sentence_transformers:
            report = libraries.to_sentence_transformers(model, folder, texts=samples)
    for name, error in report.error.items():
        typer.echo(f"{name}: maximum relative error {error:.1e}", err=True)
    for name, value in report.loss.items():
        typer.echo(f"8-bit weights: {name} {value:.4f}", err=True)
    if report.missing:
        typer.echo(f"not exported: {report.missing}; {to.value} cannot hold them", err=True)
    typer.echo(f"wrote {folder}", err=True)
