"""All training tasks by name."""

from pathlib import Path
from typing import Any

from clearhead.train.recipe.recipe import Recipe
from clearhead.train.tasks import (
    classification,
    masked_language_model,
    reranking,
    sentence_embeddings,
    span_qa,
    text_to_text,
)
from clearhead.train.tasks.base import Task, TaskEntry

TASKS: dict[str, TaskEntry] = {
    entry.name: entry
    for entry in (
        text_to_text.TASK,
        masked_language_model.TASK,
        classification.TASK,
        span_qa.TASK,
        sentence_embeddings.TASK,
        reranking.TASK,
    )
}


def create_task(recipe: Recipe, folder: Path) -> Task[Any]:
    """Return the task of a recipe with its initialized model.

    Args:
        recipe: the recipe.
        folder: folder of the run, where a trained tokenizer is saved.

    Raises:
        ValueError: a checkpoint or a tokenizer that is missing or does not fit the task.
    """
    return TASKS[recipe.task].create(recipe, folder)
