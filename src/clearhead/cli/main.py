"""`clearhead`: its verbs, and what a person sees when something is wrong."""

import logging
import sys
import warnings
from typing import Annotated

import typer

from clearhead import __version__
from clearhead.cli.ablate import ablate
from clearhead.cli.answer import answer
from clearhead.cli.benchmark import benchmark
from clearhead.cli.classify import classify
from clearhead.cli.convert import convert
from clearhead.cli.distill import distill
from clearhead.cli.encode import encode
from clearhead.cli.evaluate import evaluate
from clearhead.cli.export import export
from clearhead.cli.lint import lint
from clearhead.cli.serve import serve
from clearhead.cli.summarize import summarize
from clearhead.cli.tokenizer import tokenizer
from clearhead.cli.trace import trace
from clearhead.cli.train import train
from clearhead.cli.translate import translate
from clearhead.cli.verify import verify
from clearhead.cli.view import view
from clearhead.text.tables import raise_field_limit

app = typer.Typer(
    name="clearhead",
    help="Transformer encoders and encoder–decoders, clear, verified and fast.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(encode)
app.command()(classify)
app.command()(translate)
app.command()(summarize)
app.command()(answer)
app.command()(train)
app.command()(distill)
app.command()(ablate)
app.command()(serve)
app.command()(trace)
app.command()(view)
app.command()(lint)
app.command()(verify)
app.add_typer(evaluate, name="evaluate")
app.add_typer(tokenizer, name="tokenizer")
app.add_typer(benchmark, name="benchmark")
app.command()(convert)
app.command()(export)


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"clearhead {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line; an error that a person can mend becomes one line on standard error and status 1."""
    logging.basicConfig(level=logging.WARNING, format="clearhead: %(message)s")
    raise_field_limit()
    # torch.load prints these before it refuses the file; the error that follows says more
    warnings.filterwarnings("ignore", "Detected pickle protocol|'torch.load' received a zip file")
    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"clearhead: error: {_line(error)}", err=True)
        sys.exit(1)


def _line(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())
