"""`clearhead distill`: a student learns from a teacher."""

from typing import Annotated

import typer

from clearhead.cli.training.train import Overrides, Quiet, RecipeFile, naming_recipe, progress, read_recipe, report


def distill(
    recipe: RecipeFile,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the recipe's output folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a student on a teacher: its probabilities, its hidden states, or the texts that it writes.

    The recipe says in regularize.distillation who teaches, and how much that counts.
    """
    read = read_recipe(recipe, overrides)
    from clearhead.train.distillation import distill as run

    with progress(quiet) as advance, naming_recipe(recipe):
        trained = run(read, resume=resume, on_step=advance)
    report(trained)
