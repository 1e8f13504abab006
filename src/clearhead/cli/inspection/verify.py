"""`clearhead verify`: the certificate of a checkpoint."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli import options
from clearhead.cli.outputs import claim
from clearhead.io.json import write_json


class AgainstOption(StrEnum):
    """The library to compare with."""

    transformers = "transformers"


def verify(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder, or its id on the Hugging Face Hub.")],
    against: Annotated[
        AgainstOption | None, typer.Option(help="Insist on the comparison with it. Default: where it is installed.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The certificate. Default: certificate.json beside the weights."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Try a checkpoint in every way that should not matter: padding, order, caches, kernels, precision, saving.

    Prints the largest error of each, writes them with versions and hashes, and ends with status 1 if one is too large.
    A check that ends in an error has failed, too.
    """
    from clearhead.inspection.verify.certificate import NAME
    from clearhead.inspection.verify.verify import verify as run
    from clearhead.io import hub

    path = hub.resolve_model(model) / NAME if output is None else output
    claim(context, path)
    found = run(model, None if against is None else against.value)
    write_json(path, found.as_dict())
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        width = max(len(check.name) for check in found.checks)
        for check in found.checks:
            error = "-" if check.error is None else f"{check.error:.1e}"
            status = "skipped" if check.skipped else "holds" if check.holds else "FAILS"
            typer.echo(
                f"{check.name:{width}} {error:>8}  of {check.bound:.1e}  {status:7}  {check.note or check.measured}"
            )
        typer.echo(f"{found.summary}; {path}", err=True)
    if not found.holds:
        raise typer.Exit(1)
