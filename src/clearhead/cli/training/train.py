"""`clearhead train`: train a model from a recipe and text files."""

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.memory import MemoryLimitError

if TYPE_CHECKING:
    from clearhead.train.recipe.recipe import Recipe
    from clearhead.train.trainer import TrainingResult

RecipeFile = Annotated[
    str, typer.Argument(metavar="RECIPE.yaml", help="Recipe with the model, the data and the settings of the training.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]", help="Values that override the recipe, such as training.steps=100 or output=runs/b."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar and only warnings.")]


def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run in the output folder of the recipe, or start it."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe: text-to-text, masked language model, classification, span answers or embeddings.

    The other commands and transformers can load the output folder. Ctrl-C stops after the current step. --resume then
    gives the same weights as a run without the interruption.

    The folder recipes/ of the repository has an example for each task, and docs/recipe.md lists all keys.

    Data-parallel training: torchrun --nproc-per-node=2 --no-python clearhead train ...
    """
    parsed = read_recipe(recipe, overrides)
    from clearhead.train.trainer import train as run_training

    with progress(quiet) as on_step, recipe_error_context(recipe):
        result = run_training(parsed, resume=resume, on_step=on_step)
    print_result(result)


def print_result(result: "TrainingResult") -> None:
    """Print which weights a run kept and their scores, and exit with status 130 if it was interrupted."""
    if _is_rank_zero():
        from clearhead.train.loop.metrics_logger import format_scores

        typer.echo("  ".join(filter(None, [str(result.folder), _kept_weights(result), format_scores(result.scores)])))
        if not result.finished:
            typer.echo(f"clearhead: stopped at step {result.step}; continue with --resume", err=True)
    if not result.finished:
        raise typer.Exit(130)


def _kept_weights(result: "TrainingResult") -> str:
    steps = [str(step) for step in result.weights_of]
    if not steps:
        return f"step {result.step}, no weights yet"
    of_run = f" of {result.step}" if result.weights_of != [result.step] else ""
    if len(steps) == 1:
        return f"{result.weights} weights: step {steps[0]}{of_run}"
    return f"{result.weights} weights: steps {', '.join(steps[:-1])} and {steps[-1]}{of_run}"


def _is_rank_zero() -> bool:
    """Return whether this is the only process or rank 0 of `torchrun`. Only that process prints."""
    return os.environ.get("RANK", "0") == "0"


def read_recipe(path: str, overrides: list[str] | None) -> "Recipe":
    """Read a recipe and apply overrides.

    Raises:
        ValueError: a required package is missing, or the recipe or a variable of `torchrun` is invalid.
    """
    for name, module in (
        ("lightning", "lightning"),
        ("matplotlib", "matplotlib"),
        ("pydantic", "pydantic"),
        ("pyyaml", "yaml"),
        ("tensorboard", "tensorboard"),
    ):
        if importlib.util.find_spec(module) is None:
            raise ValueError(f'training needs {name}: pip install "clearhead[train]"')
    from clearhead.train.distributed.process_group import check_torchrun
    from clearhead.train.recipe.load import read_recipe as read_file

    check_torchrun()
    return read_file(path, overrides or [])


@contextmanager
def recipe_error_context(path: str) -> Iterator[None]:
    """Add the file of the recipe to a `RecipeError`, `DivergedError` or `MemoryLimitError`.

    Raises:
        ValueError: the block raised one of them.
    """
    from clearhead.train.loop.lightning_module import DivergedError
    from clearhead.train.recipe.errors import RecipeError

    try:
        yield
    except (RecipeError, DivergedError, MemoryLimitError) as error:
        raise ValueError(f"{path}: {error}") from None


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on standard error if it is a terminal, with log messages above it; else only log messages."""
    from rich.console import Console
    from rich.logging import RichHandler
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from clearhead.train.loop.callback import STEP_LOGGER

    console = Console(stderr=True)
    log = logging.getLogger("clearhead.train")
    visible = not quiet and _is_rank_zero() and sys.stderr.isatty()
    log.setLevel(logging.ERROR if not _is_rank_zero() else logging.WARNING if quiet else logging.INFO)
    if visible:
        log.addHandler(RichHandler(console=console, show_time=False, show_level=False, show_path=False))
        log.propagate = False
        logging.getLogger(STEP_LOGGER).setLevel(logging.WARNING)  # the bar shows the same
    columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not visible) as bar:
        task = bar.add_task("preparing the data", total=None)

        def on_step(step: int, steps: int, message: str) -> None:
            bar.update(task, completed=step, total=steps, description=message)

        yield on_step
