"""Set up Lightning's trainer: device, precision and distribution over processes."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import lightning
import torch

from clearhead.runtime.device import choose_device
from clearhead.runtime.precision import choose_precision
from clearhead.train.distributed import fsdp
from clearhead.train.distributed.process_group import ProcessGroup
from clearhead.train.loop.callback import TrainingCallback
from clearhead.train.loop.checkpointing import AtomicCheckpointIO
from clearhead.train.recipe.recipe import Recipe


def lightning_trainer(recipe: Recipe, callback: TrainingCallback, processes: ProcessGroup) -> lightning.Trainer:
    """Return Lightning's trainer for a recipe.

    Args:
        recipe: the recipe.
        callback: logs, validates and writes checkpoints.
        processes: the processes of the run.
    """
    section = recipe.training
    device = choose_device(section.device)
    use_bfloat16 = choose_precision(section.precision, device).dtype == torch.bfloat16
    return lightning.Trainer(
        accelerator={"cuda": "gpu"}.get(section.device, section.device),
        devices=processes.local_size if processes.size > 1 else 1,
        num_nodes=processes.size // processes.local_size,
        strategy=_strategy(recipe, processes),
        precision="bf16-mixed" if use_bfloat16 else "32-true",
        max_epochs=1,
        accumulate_grad_batches=section.gradient_accumulation_steps,
        callbacks=[callback],
        plugins=[AtomicCheckpointIO()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )


def _strategy(recipe: Recipe, processes: ProcessGroup) -> Any:
    if processes.size == 1:
        return "auto"
    if recipe.training.fsdp:
        return fsdp.FullCheckpointStrategy(processes.size, processes.backend)
    from lightning.pytorch.strategies import DDPStrategy

    # LayerDrop and freezing leave parameters unused; gradients as views of the buckets save a copy of the weights
    return DDPStrategy(
        find_unused_parameters=True, gradient_as_bucket_view=True, process_group_backend=processes.backend
    )


@contextlib.contextmanager
def suppress_lightning_messages() -> Iterator[None]:
    """Suppress Lightning's messages about settings that are intended here."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
