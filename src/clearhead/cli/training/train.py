"""`clearhead train`: from a recipe and text files to a model's folder."""

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

RecipeFile = Annotated[str, typer.Argument(metavar="RECIPE.yaml", help="What to train, on what, and how.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]", help="Changes of the recipe, such as training.steps=100 or output=runs/b."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, and only warnings.")]


def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the recipe's output folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model as a recipe says: text-to-text, masked language model, classification, span answers or embeddings.

    The folder that it writes is opened by the other verbs, and by transformers. Ctrl-C stops after the step that it is
    in; --resume goes on to the very weights that a run without the interruption ends in.

    Several processes, each with a share of every batch: torchrun --nproc_per_node 2 --no-python clearhead train ...
    """
    read = read_recipe(recipe, overrides)
    from clearhead.train.trainer import train as run

    with progress(quiet) as advance, naming_recipe(recipe):
        trained = run(read, resume=resume, on_step=advance)
    report(trained)


def report(trained: "TrainingResult") -> None:
    """Says what a run came to; one that was asked to stop ends with status 130."""
    if _first():
        told = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in trained.scores.items())
        typer.echo(f"{trained.folder}  step {trained.step}{f'  {told}' if told else ''}")
        if not trained.finished:
            typer.echo(f"clearhead: stopped at step {trained.step}; --resume goes on", err=True)
    if not trained.finished:
        raise typer.Exit(130)


def _first() -> bool:
    """Whether this is the only process, or the first of those that `torchrun` started: the one that speaks."""
    return os.environ.get("RANK", "0") == "0"


def read_recipe(path: str, overrides: list[str] | None) -> "Recipe":
    """The recipe in a file, with changes.

    Raises:
        ValueError: a library that training needs is missing, or the recipe is wrong.
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
    from clearhead.train.recipe.load import read_recipe as read

    return read(path, overrides or [])


@contextmanager
def naming_recipe(path: str) -> Iterator[None]:
    """Start the message of an error about too little memory with the recipe's file.

    Raises:
        MemoryLimitError: the block raised it.
    """
    try:
        yield
    except MemoryLimitError as error:
        raise MemoryLimitError(f"{path}: {error}") from None


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar of steps on a terminal's standard error; the run's own messages above it."""
    from rich.console import Console
    from rich.logging import RichHandler
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    log = logging.getLogger("clearhead.train")
    shown = not quiet and _first() and sys.stderr.isatty()
    log.setLevel(logging.ERROR if not _first() else logging.WARNING if quiet else logging.INFO)
    if shown:
        log.addHandler(RichHandler(console=console, show_time=False, show_level=False, show_path=False))
        log.propagate = False
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown) as bar:
        task = bar.add_task("", total=None)

        def advance(step: int, steps: int, told: str) -> None:
            bar.update(task, completed=step, total=steps, description=told)

        yield advance
