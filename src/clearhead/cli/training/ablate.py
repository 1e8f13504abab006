"""`clearhead ablate`: measure the effect of each regularizer."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.training.train import Overrides, Quiet, RecipeFile, progress, read_recipe, recipe_error_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clearhead.train.ablation import AblationResult


def ablate(
    recipe: RecipeFile,
    overrides: Overrides = None,
    without: Annotated[
        str, typer.Option(metavar="A,B", help="Regularizers to remove one at a time, such as dropout,layer_norm.")
    ] = "",
    with_: Annotated[
        str, typer.Option("--with", metavar="C,D", help="Regularizers to add one at a time, such as r_drop.")
    ] = "",
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds per variant, counting up from the seed of the recipe.")
    ] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the runs in the output folder.")] = False,
    as_json: options.Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a recipe, then its variants without or with one regularizer, and compare their scores.

    Regularizers: dropout, attention_masking, weight_decay, layer_norm, label_smoothing, early_stopping, augmentation,
    gradient_clipping, distillation, residual_path; r_drop, l2_penalty.
    """
    parsed = read_recipe(recipe, overrides)
    from clearhead.train.ablation import ablate as run_ablation

    with progress(quiet) as on_step, recipe_error_context(recipe):
        effects = run_ablation(
            parsed,
            without=_split_names(without),
            with_=_split_names(with_),
            seeds=seeds,
            resume=resume,
            on_step=on_step,
        )
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(effect) for effect in effects]))
    else:
        _print_table(effects)


def _split_names(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _print_table(effects: "Sequence[AblationResult]") -> None:
    """Print the scores of each variant, their difference to the recipe, and the standard deviation over the seeds."""
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(name for effect in effects for name in effect.mean))
    table = Table()
    table.add_column("run")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for number, effect in enumerate(effects):
        cells = [_cell(effect, name, base=number == 0) for name in names]
        diverged = f" ({effect.diverged} of {len(effect.runs)} diverged)" if effect.diverged else ""
        table.add_row(effect.name.replace("_", " ") + diverged, *cells)
    # a file or a pipe has no width: keep each row on one line
    Console(width=None if sys.stdout.isatty() else 400).print(table)


def _cell(effect: "AblationResult", name: str, *, base: bool) -> str:
    if name not in effect.mean:
        return "diverged"
    several = len(effect.runs) - effect.diverged > 1
    score = f"{effect.mean[name]:.3f}{f' ± {effect.spread[name]:.3f}' if several else ''}"
    if base or name not in effect.difference:
        return score
    spread = f" ± {effect.difference_spread[name]:.3f}" if several else ""
    return f"{score} ({effect.difference[name]:+.3f}{spread})"
