"""`clearhead lint`: mistakes in how a model treats masks."""

import json
from typing import Annotated

import typer

from clearhead.cli import options


def lint(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts to run it with, beside a short and a long one of its own."),
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    as_json: options.Json = False,
) -> None:
    """Look for mistakes in a checkpoint's padding: its id, who attends to it, whether it leaks into the pooled vector.

    Says what was checked, and ends with status 1 if there is a mistake. Attention is looked at from outside, by what
    each token depends on. In Python, clearhead.lint(model, batch) does so for your own calls, of torch.nn's and
    transformers' models too.
    """
    from dataclasses import asdict

    from clearhead.inspection.lint.checkpoint import lint_checkpoint

    report = lint_checkpoint(model, texts or [])
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        for finding in report.findings:
            typer.echo(str(finding))
        for checked in report.checked:
            typer.echo(f"checked: {checked}", err=True)
        count = len(report.findings)
        typer.echo(
            f"{count} {'mistake' if count == 1 else 'mistakes'} found" if count else "no mistake found", err=True
        )
    if report.findings:
        raise typer.Exit(1)
