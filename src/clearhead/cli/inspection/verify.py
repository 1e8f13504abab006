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
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder or Hugging Face Hub id.")],
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
    as_json: options.Json = False,
) -> None:
    """Check that padding, batch order, caches, kernels, precision and saving do not change the results.

    The command prints the largest error of each check, and exits with status 1 if an error exceeds its bound or a check
    raises an exception. A certificate contains the errors with versions and hashes.
    """
    from clearhead.inspection.verify.certificate import NAME
    from clearhead.inspection.verify.verify import verify as run_checks
    from clearhead.io import hub

    if write and output is not None:
        raise ValueError("give --write or --output, not both")
    path = output
    if write:
        folder = hub.resolve_model(model)
        if hub.in_installed_package(folder):
            raise ValueError(f"{folder} is part of an installed package; write the certificate with --output FILE")
        path = folder / NAME
    if path is not None:
        lock_output(context, path)
    show = (lambda check: None) if as_json else _print_check
    certificate = run_checks(model, None if reference is None else reference.value, on_check=show)
    if path is not None:
        write_json(path, certificate.as_dict())
    if as_json:
        typer.echo(json.dumps(certificate.as_dict()))
    else:
        typer.echo(certificate.summary if path is None else f"{certificate.summary}; {path}", err=True)
    if not certificate.holds:
        raise typer.Exit(1)


def _print_check(check: "Check") -> None:
    error = "-" if check.error is None else f"{check.error:.1e}"
    status = "skipped" if check.skipped else "holds" if check.holds else "FAILS"
    measured = check.note or check.measured
    typer.echo(f"{check.name:{_NAME_WIDTH}} {error:>8}  of {check.bound:.1e}  {status:7}  {measured}")
