"""The tasks, one a file."""

from importlib import import_module
from pathlib import Path
from typing import Any

from clearhead.train.recipe.recipe import Recipe
from clearhead.train.tasks.base import Task

_HOME = {
    "text-to-text": ("text_to_text", "TextToTextTask"),
    "masked-language-model": ("masked_language_model", "MaskedTask"),
    "classification": ("classification", "ClassificationTask"),
    "span-answers": ("span_qa", "SpanTask"),
    "sentence-embeddings": ("sentence_embeddings", "EmbeddingTask"),
}


def task_of(recipe: Recipe, folder: Path) -> Task[Any]:
    """The task of a recipe, with its model as training starts from it.

    Args:
        recipe: the recipe.
        folder: the run's, where a tokenizer that is learned from the data is kept.

    Raises:
        ValueError: a checkpoint or a tokenizer that is not there, or does not fit the task.
    """
    module, name = _HOME[recipe.task]
    task: Task[Any] = getattr(import_module(f"clearhead.train.tasks.{module}"), name).from_recipe(recipe, folder)
    return task
