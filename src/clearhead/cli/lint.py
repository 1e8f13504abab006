"""`clearhead lint`: mistakes in how a model treats masks."""

import json
from typing import Annotated

import typer

from clearhead.cli import options

_TEXTS = ("The old bridge was closed after the storm.", "Where can I buy a ticket?", "Hello!")


def lint(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts of different lengths. Default: three.")
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    as_json: options.Json = False,
) -> None:
    """Look for mistakes in how a checkpoint's model treats masks: from outside, by what each token depends on.

    Ends with status 1 if there is one. In Python: clearhead.lint(model, batch), for torch.nn's and transformers' models
    too.
    """
    from dataclasses import asdict

    from clearhead.see.checkpoint_lint import lint_checkpoint

    found = lint_checkpoint(model, texts or list(_TEXTS))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found]))
    else:
        for finding in found:
            typer.echo(str(finding))
        typer.echo(f"{len(found)} mistakes found" if found else "no mistake found", err=True)
    if found:
        raise typer.Exit(1)
