"""`clearhead lint`: find masking and padding mistakes in a checkpoint."""

import json
from typing import Annotated

import typer

from clearhead.cli import options
from clearhead.io.hub import is_model


def lint(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts to run, in addition to a built-in short and long one."),
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    as_json: options.Json = False,
) -> None:
    """Find padding mistakes in a checkpoint: the padding id, attention to padding, padding in the pooled vector.

    The command prints each check, and exits with status 1 after a mistake. A check tests which inputs each output
    depends on. In Python, clearhead.lint(model, batch) checks your own calls, also of torch.nn and transformers models.
    """
    from dataclasses import asdict

    for text in texts or []:
        if is_model(text):
            raise ValueError(f"{text} is a model, but arguments are texts. Choose the model with --model {text}")
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
