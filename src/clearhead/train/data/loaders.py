"""Datasets, data loader and validation of a recipe."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clearhead.finite import NonFiniteError
from clearhead.tokenizers.base import MaxLengthError
from clearhead.train.data.dataloader import TrainingDataLoader
from clearhead.train.data.dataset import NoExamplesError, TokenizedDataset, build_dataset
from clearhead.train.data.files import open_records
from clearhead.train.data.sampler import TokenBatchSampler, sequential_batches
from clearhead.train.distributed.process_group import ProcessGroup
from clearhead.train.memory import check_batch, check_update
from clearhead.train.recipe.errors import RecipeError
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import Files
from clearhead.train.regularizers.augmentation import reverse_pairs
from clearhead.train.tasks.base import Batch, Task
from clearhead.train.tasks.predictions import task_loss

log = logging.getLogger(__name__)


def build_datasets(recipe: Recipe, task: Task[Any], folder: Path) -> tuple[TokenizedDataset, TokenizedDataset | None]:
    """Tokenize the training and held-out examples, or reuse the datasets in the run's folder.

    Args:
        recipe: the recipe.
        task: converts rows to examples.
        folder: folder of the run.
    """
    # the held-out data first: it is smaller, so its errors appear before the long work
    validation = recipe.data.validation
    held_out = None if validation is None else _build(recipe, task, folder / "data" / "validation", validation)
    return _build(recipe, task, folder / "data" / "training", recipe.data.train), held_out


def _build(recipe: Recipe, task: Task[Any], folder: Path, files: Files) -> TokenizedDataset:
    data = recipe.data
    records = open_records(data, files, task.fields_of(files))
    truncated, too_long = task.num_truncated, task.num_too_long
    try:
        dataset = build_dataset(
            folder,
            records,
            task.examples,
            key=json.dumps([records.describe(), data.model_dump(mode="json"), task.cache_key()]),
            max_tokens=data.batch_tokens,
            strict=data.strict,
        )
    except NoExamplesError as error:
        names = files.values() if isinstance(files, Mapping) else [files]
        raise ValueError(f"{', '.join(map(str, names))}: {error}") from None
    except MaxLengthError as error:
        raise RecipeError(f"data.{error}") from None
    reasons = [f"{count:,}: {reason}" for reason, count in dataset.skipped.items()]
    if task.num_too_long > too_long:
        reasons.append(f"{task.num_too_long - too_long:,}: {task.untruncated_field} too long")
    skipped = f"; skipped: {', '.join(reasons)}" if reasons else ""
    cut = f"; truncated: {task.num_truncated - truncated:,}" if task.num_truncated > truncated else ""
    tokens = int(dataset.lengths.sum(dtype=np.int64))
    log.info("%s: %s examples, %s tokens%s%s", folder.name, f"{len(dataset):,}", f"{tokens:,}", skipped, cut)
    return dataset


def build_loader(
    recipe: Recipe, task: Task[Any], dataset: TokenizedDataset, processes: ProcessGroup
) -> TrainingDataLoader:
    """Return the batches of a whole training run, or this process's part of them.

    Raises:
        ValueError: a batch does not fit in memory.
    """
    data, section = recipe.data, recipe.training
    sampler = TokenBatchSampler(
        dataset.lengths, batch_tokens=data.batch_tokens, seed=recipe.seed, batch_size=data.batch_size
    )
    check_batch(task.model, min(data.batch_tokens, _tokens_of_shortest(dataset, data.batch_size)), recipe)
    check_update(float(dataset.lengths.sum()) / len(sampler.epoch(0)), recipe)

    def collate(rows: Sequence[int] | np.ndarray, generator: np.random.Generator, progress: float) -> Batch:
        augmentation = recipe.regularize.augmentation
        examples = reverse_pairs([dataset[int(row)] for row in rows], augmentation, generator, progress)
        return task.collate(examples, generator, training=True)

    return TrainingDataLoader(
        sampler,
        collate,
        seed=recipe.seed,
        steps=section.steps,
        epochs=section.epochs,
        accumulation_steps=section.gradient_accumulation_steps,
        rank=processes.rank,
        world_size=processes.size,
    )


def _tokens_of_shortest(dataset: TokenizedDataset, batch_size: int | None) -> int:
    """Return the tokens of as many of the shortest examples as one batch may contain."""
    lengths = np.sort(dataset.lengths.sum(axis=1, dtype=np.int64))
    return int(lengths[:batch_size].sum())


def build_validator(task: Task[Any], held_out: TokenizedDataset, recipe: Recipe) -> Callable[[], dict[str, float]]:
    """Return a function that computes the loss without regularizers and the task's metrics.

    Args:
        task: the task with its model.
        held_out: held-out examples.
        recipe: the recipe.
    """
    lengths = held_out.lengths[: recipe.validation.max_examples]
    batches = sequential_batches(lengths, batch_tokens=recipe.data.batch_tokens, batch_size=recipe.data.batch_size)

    def compute_loss() -> float:
        total, count = 0.0, 0
        device = next(task.model.parameters()).device
        for number, rows in enumerate(batches):
            generator = np.random.default_rng(number)
            batch = task.collate([held_out[int(row)] for row in rows], generator, training=False).to(device)
            total += float(task_loss(task.predict(task.model, batch, mask_padding=True)))
            count += batch.count
        return total / max(1, count)

    def validate() -> dict[str, float]:
        with _evaluation_mode(task.model):
            scores = {"loss": compute_loss()}
            with _without_autocast(task.model):
                return scores | task.validate()

    return validate


def sample_predictions(task: Task[Any]) -> list[str]:
    """Return the lines of `Task.samples`, computed in evaluation mode; [] if the model diverged."""
    # the check of the weights reports the divergence
    with contextlib.suppress(NonFiniteError), _evaluation_mode(task.model), _without_autocast(task.model):
        return task.samples()
    return []


@contextlib.contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train()


def _without_autocast(model: nn.Module) -> torch.autocast:
    """Return a context for pipelines, which choose their precision themselves."""
    return torch.autocast(next(model.parameters()).device.type, enabled=False)
