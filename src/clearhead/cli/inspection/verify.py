"""`clearhead verify`: test a checkpoint and write a certificate."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.outputs import lock_output
from clearhead.io.json import write_json

if TYPE_CHECKING:
    from clearhead.inspection.verify.certificate import Check

_NAME_WIDTH = 30
"""Width of the longest name of a check."""


class ReferenceOption(StrEnum):
    """Reference library."""

    transformers = "transformers"


def verify(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Model folder or Hugging Face Hub id. Omit it with --against.")
    ] = None,
    reference: Annotated[
        ReferenceOption | None,
        typer.Option(help="Require the comparison with this library. Default: compare if it is installed."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the certificate to this file."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the certificate next to the weights, as certificate.json.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM",
            help="Compare the vectors of a system with those of --index: the URL of an endpoint with OpenAI's API, an "
            "ONNX file, or a folder of sentence-transformers.",
        ),
    ] = None,
    index: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Index whose vectors --against compares.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model at an endpoint. Default: its only model.")] = None,
    as_json: options.Json = False,
) -> None:
    """Check that padding, batch order, caches, kernels, precision and saving do not change the results.

    The command prints the largest error of each check, and exits with status 1 if an error exceeds its bound or a check
    raises an exception. A certificate contains the errors with versions and hashes.

    With --against and --index, it compares the vectors of another system for 32 texts with those that the index has.
    """
    if against is not None or index is not None:
        if output is not None or write or reference is not None:
            raise ValueError(
                "--output, --write and --reference are for the checks of a model; omit them with --against"
            )
        _compare(model, against, index, name, as_json=as_json)
        return
    if model is None:
        raise ValueError("verify needs a model, or --against SYSTEM --index FOLDER")
    if name is not None:
        raise ValueError("--name requires --against")
    if write and output is not None:
        raise ValueError("give --write or --output, not both")
    path = _path_next_to_weights(model) if write else output
    if path is not None:
        lock_output(context, path)
    _certify(model, None if reference is None else reference.value, path, as_json=as_json)


def _path_next_to_weights(model: str) -> Path:
    from clearhead.inspection.verify.certificate import NAME
    from clearhead.io import hub

    folder = hub.resolve_model(model)
    if hub.in_installed_package(folder):
        raise ValueError(f"{folder} is part of an installed package; write the certificate with --output FILE")
    return folder / NAME


def _certify(model: str, reference: str | None, path: Path | None, *, as_json: bool) -> None:
    """Run the checks of a model, and print or write its certificate."""
    from clearhead.inspection.verify.verify import verify as run_checks

    show = (lambda check: None) if as_json else _print_check
    certificate = run_checks(model, reference, on_check=show)
    if path is not None:
        write_json(path, certificate.as_dict())
    if as_json:
        typer.echo(json.dumps(certificate.as_dict()))
    else:
        typer.echo(certificate.summary if path is None else f"{certificate.summary}; {path}", err=True)
    if not certificate.holds:
        raise typer.Exit(1)


def _compare(model: str | None, against: str | None, index: Path | None, name: str | None, *, as_json: bool) -> None:
    """Compare the vectors of another system with those of an index."""
    from clearhead.retrieval.against.comparison import compare, record

    if against is None or index is None or model is not None:
        raise ValueError("a comparison needs --against SYSTEM and --index FOLDER, and no model")
    comparison = compare(index, against, name)
    typer.echo(json.dumps(comparison.as_dict(), ensure_ascii=False) if as_json else comparison.summary)
    record(index, comparison)
    if not comparison.is_same:
        raise typer.Exit(1)


def _print_check(check: "Check") -> None:
    error = "-" if check.error is None else f"{check.error:.1e}"
    status = "skipped" if check.skipped else "holds" if check.holds else "FAILS"
    measured = check.note or check.measured
    typer.echo(f"{check.name:{_NAME_WIDTH}} {error:>8}  of {check.bound:.1e}  {status:7}  {measured}")
