"""From a recipe's files to batches, for training and for validation."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearhead.data.records import Records
from clearhead.train import regularizers
from clearhead.train.data.dataloader import Loader
from clearhead.train.data.dataset import TokenizedDataset, build_store
from clearhead.train.data.sampler import TokenBatchSampler, sequential
from clearhead.train.distributed.process_group import ProcessGroup
from clearhead.train.memory import check_batch, check_update
from clearhead.train.recipe.recipe import Files, Recipe
from clearhead.train.tasks.base import Task

log = logging.getLogger(__name__)


def stores(recipe: Recipe, task: Task[Any], folder: Path) -> tuple[TokenizedDataset, TokenizedDataset | None]:
    """Training and held-out examples, made once and then read from the run's folder."""

    def store(name: str, source: Files) -> TokenizedDataset:
        records = Records(
            source, fields=task.fields_of(source), columns=recipe.data.columns, encoding=recipe.data.encoding
        )
        cut, longer = task.cut, task.longer
        key = json.dumps([records.describe(), recipe.data.model_dump(mode="json"), task.key()])
        built = build_store(
            folder / "data" / name,
            records,
            task.examples,
            key=key,
            budget=recipe.data.batch_tokens,
            strict=recipe.data.strict,
        )
        reasons = [f"{count:,}: {reason}" for reason, count in built.skipped.items()]
        if task.longer > longer:
            reasons.append(f"{task.longer - longer:,}: {task.uncut} too long")
        left_out = f"; left out: {', '.join(reasons)}" if reasons else ""
        shorter = f"; too long, and cut: {task.cut - cut:,}" if task.cut > cut else ""
        log.info("%s: %d examples%s%s", name, len(built), left_out, shorter)
        return built

    # the held-out data first: it is the smaller one, and what is wrong with it is said before long work
    held_out = None if recipe.data.validation is None else store("validation", recipe.data.validation)
    return store("training", recipe.data.train), held_out


def loader(recipe: Recipe, task: Task[Any], data: TokenizedDataset, world: ProcessGroup) -> Loader:
    """The batches of a whole training, or one process's part of them."""
    batches = TokenBatchSampler(
        data.lengths, batch_tokens=recipe.data.batch_tokens, seed=recipe.seed, batch_size=recipe.data.batch_size
    )
    check_batch(task.model, min(recipe.data.batch_tokens, _tokens(data, recipe)), recipe)
    check_update(float(data.lengths.sum()) / len(batches.epoch(0)), recipe)
    loader = Loader(
        batches,
        lambda rows, draws: task.collate([data[int(row)] for row in rows], draws, learning=True),
        seed=recipe.seed,
        steps=recipe.training.steps,
        epochs=recipe.training.epochs,
        accumulate=recipe.training.accumulate,
        rank=world.rank,
        world=world.size,
    )
    told = recipe.optimizer
    if told.schedule in ("linear", "cosine") and loader.steps <= told.warmup_steps:
        raise ValueError(
            f"optimizer.warmup_steps is {told.warmup_steps}, and the whole training has {loader.steps} steps: a "
            f"{told.schedule} schedule falls after the warm-up. Fewer warm-up steps are wanted, or a longer training"
        )
    return loader


def _tokens(data: TokenizedDataset, recipe: Recipe) -> int:
    """Return the tokens of as many of the shortest examples as one batch may hold."""
    lengths = np.sort(data.lengths.sum(axis=1, dtype=np.int64))
    return int(lengths[: recipe.data.batch_size].sum())


def validation(task: Task[Any], held_out: TokenizedDataset, recipe: Recipe) -> Callable[[], dict[str, float]]:
    """Measures a task's model as it is: the loss without regularisers, and the task's scores."""
    lengths = held_out.lengths[: recipe.validation.examples]
    plan = sequential(lengths, batch_tokens=recipe.data.batch_tokens, batch_size=recipe.data.batch_size)

    def loss() -> float:
        total, count = 0.0, 0
        device = next(task.model.parameters()).device
        for number, rows in enumerate(plan):
            draws = np.random.default_rng(number)
            batch = task.collate([held_out[int(row)] for row in rows], draws, learning=False).to(device)
            total += float(regularizers.task_loss(task.guess(task.model, batch, masked=True)))
            count += batch.count
        return total / max(1, count)

    def measure() -> dict[str, float]:
        task.model.eval()
        try:
            with torch.inference_mode():
                found = {"loss": loss()}
                # what people run with chooses its numbers itself
                with torch.autocast(next(task.model.parameters()).device.type, enabled=False):
                    return found | task.validate()
        finally:
            task.model.train()

    return measure
