"""`clearhead view`: write an HTML report of a forward pass."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli import options
from clearhead.cli.inspection.load import load_with_head
from clearhead.cli.outputs import lock_output


def view(
    context: typer.Context,
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT...", help="Text to encode, classify or translate; several for an encoder."),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Folder or Hugging Face Hub id of an encoder or an encoder–decoder. Default: the bundled model for "
            "everyday English to German.",
            metavar="MODEL",
        ),
    ] = options.TRANSLATOR,
    output: Annotated[Path, typer.Option("--output", "-o", help="Output HTML file.")] = Path("view.html"),
    beam_size: options.BeamSize = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    full_maps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART.LAYER.HEAD",
            help="Attention map to keep at full size, such as encoder.3.0. Others have at most 256 x 256 cells.",
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write an HTML report of a forward pass: tokens, every step, all attention, and the result.

    The result is the beams of a translation, the vector of an encoder, or the labels of a classifier. For several
    texts, the report shows the steps of the first one and the cosine of each pair.

    The report is one file that needs no network. Each step expands to its equation, shape, statistics and heat map.
    """
    maps = [_parse_map(name) for name in full_maps or []]
    lock_output(context, output)
    from clearhead.inspection.report.collect import collect
    from clearhead.inspection.report.html import write_page
    from clearhead.pipelines.text_to_text import TextToText

    pipeline, source_lang, target_lang = load_with_head(model, source_lang, target_lang)
    if beam_size is not None and not isinstance(pipeline, TextToText):
        raise ValueError(f"{model} is an encoder; --beam-size is only for encoder–decoders")
    data = collect(
        model,
        pipeline,
        texts,
        beam_size=beam_size,
        full_maps=maps,
        source_lang=source_lang,
        target_lang=target_lang,
    )
    write_page(data, output)
    typer.echo(f"{output} ({output.stat().st_size / 1e6:.1f} MB)", err=True)
    if open_browser:
        webbrowser.open(output.resolve().as_uri())


def _parse_map(name: str) -> tuple[str, int, int]:
    part, *numbers = name.split(".")
    if part not in ("encoder", "decoder", "cross") or len(numbers) != 2 or not all(n.isdecimal() for n in numbers):
        raise ValueError(f"--full-maps takes encoder.LAYER.HEAD, decoder.LAYER.HEAD or cross.LAYER.HEAD; got {name!r}")
    return part, int(numbers[0]), int(numbers[1])
