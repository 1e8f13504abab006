"""`clearhead distill`: train a student with a teacher."""

from typing import Annotated

import typer

from clearhead.cli.training.train import (
    Overrides,
    Quiet,
    RecipeFile,
    print_result,
    progress,
    read_recipe,
    recipe_error_context,
)


def distill(
    recipe: RecipeFile,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in the output folder of the recipe.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Distill a teacher into a student by its probabilities, hidden states or generated texts.

    The recipe sets the teacher and the weight of the distillation loss in regularize.distillation.
    """
    parsed = read_recipe(recipe, overrides)
    from clearhead.train.distillation import distill as run_distillation

    with progress(quiet) as on_step, recipe_error_context(recipe):
        result = run_distillation(parsed, resume=resume, on_step=on_step)
    print_result(result)
