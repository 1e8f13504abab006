"""A recipe becomes a model's folder."""

import contextlib
import logging
import platform
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
import yaml
from torch import nn

from clearhead._version import __version__
from clearhead.io.atomic import atomic_file
from clearhead.io.json import write_json
from clearhead.io.locks import folder_lock
from clearhead.layers.dropout import use_fast_dropout
from clearhead.runtime.device import choose_device
from clearhead.runtime.precision import choose_precision
from clearhead.train import regularizers
from clearhead.train.callback import Advance, TrainingCallback
from clearhead.train.checkpointing import STATE, CheckpointManager, WholeCheckpoints, read_state
from clearhead.train.data.loaders import loader as loader_of
from clearhead.train.data.loaders import stores, validation
from clearhead.train.distributed import fsdp
from clearhead.train.distributed.process_group import ProcessGroup, is_first, world_size
from clearhead.train.lightning_module import TrainingModule
from clearhead.train.metrics_logger import MetricsLogger
from clearhead.train.recipe.errors import did_you_mean
from clearhead.train.recipe.load import differences, flat
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.signals import stopping
from clearhead.train.tasks import task_of
from clearhead.train.tasks.base import Task

log = logging.getLogger(__name__)

_RECIPE, _VERSIONS = "recipe.yaml", "versions.json"


@dataclass(frozen=True)
class TrainingResult:
    """What a run came to.

    Args:
        folder: where the model is.
        step: the updates made.
        scores: of the model in the folder on the held-out data; {} without any.
        finished: whether it ran to its end, rather than being asked to stop.
        stopped_early: whether that end was early stopping's.
    """

    folder: Path
    step: int
    scores: dict[str, float]
    finished: bool
    stopped_early: bool


def train(recipe: Recipe, *, resume: bool = False, advance: Advance = lambda step, steps, told: None) -> TrainingResult:
    """Trains a model as a recipe says, into the recipe's output folder.

    Args:
        recipe: from `read_recipe`.
        resume: go on from the folder's checkpoint, to the very weights that a run without an interruption ends in.
        advance: told of each step, for a progress bar.

    Raises:
        OutputBusyError: another process trains into the folder.
        ValueError: files or a model that are not what the recipe says, a folder that holds another run, a loss that is
            NaN or infinite.
        OSError: a disk that is full.

    >>> from clearhead.train.recipe.load import read_recipe; from clearhead.train.trainer import train
    >>> train(read_recipe("recipes/tiny/translation.yaml")).folder  # doctest: +SKIP
    PosixPath('runs/tiny-translation')
    """
    with run_lock(recipe):
        return train_locked(recipe, resume=resume, advance=advance)


@contextlib.contextmanager
def run_lock(recipe: Recipe) -> Iterator[None]:
    """Hold the only right to write into a recipe's output folder: rank 0 does so for all processes of a run.

    Raises:
        OutputBusyError: another process writes into the folder.
    """
    if not is_first():
        yield
        return
    folder = Path(recipe.output)
    with folder_lock(folder):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # empty if the run failed before its first file was complete
                (folder / "data").rmdir()


def train_locked(recipe: Recipe, *, resume: bool, advance: Advance) -> TrainingResult:
    """Train as `train` does, in a folder whose `run_lock` the caller holds."""
    _quiet()
    device = choose_device(recipe.training.device).type
    if recipe.training.shard:
        fsdp.check(recipe)
    folder = Path(recipe.output)
    shelf = CheckpointManager(folder, recipe.training.keep_last)
    check_folder(recipe, resume)
    saved = read_state(shelf.state) if resume else None
    if saved is not None:
        _check_recipe(saved["clearhead"]["recipe"], recipe)
        _check_threads(saved["clearhead"], device, recipe)
    world = ProcessGroup(device)
    torch.manual_seed(recipe.seed)
    with world.first():
        folder.mkdir(parents=True, exist_ok=True)
        task = task_of(recipe, folder)
        _check_select(recipe, task)
        teacher = _teacher(task, recipe)
        data, held_out = stores(recipe, task, folder)
    identity = {
        "recipe": flat(recipe),
        "data": [task.key(), data.fingerprint(), None if held_out is None else held_out.fingerprint()],
        "threads": torch.get_num_threads() if device == "cpu" else None,
        "processes": world.size,
    }
    if saved is not None:
        _check_data(saved["clearhead"]["data"], identity["data"], recipe)
    _prepare(task.model, recipe)
    loader = loader_of(recipe, task, data, world)
    validate = None if held_out is None else validation(task, held_out, recipe)
    course = TrainingCallback(recipe, shelf, validate, identity, advance)
    sharded = recipe.training.shard and world.size > 1
    loader.stop_requested = lambda: course.asked_to_stop
    learner = TrainingModule(task, recipe, loader.steps, teacher, sharded)
    trainer = _trainer(recipe, course, world)
    if saved is not None:
        course.load_state_dict(saved["callbacks"][course.state_key])
    if course.done(loader.steps):
        log.info("the run in %s is finished: step %d", folder, course.step)
    else:
        if world.rank == 0:
            _write_recipe(recipe, folder)
            course.journal = MetricsLogger(folder, task.scores, course.step)
        with stopping(course):
            trainer.fit(learner, loader, ckpt_path=None if saved is None else str(shelf.state), weights_only=True)
        if course.journal is not None:
            course.journal.close()
    scores = _finish(recipe, task, shelf, course, folder) if world.rank == 0 else {}
    world.close()
    return TrainingResult(folder, course.step, scores, course.done(loader.steps), course.stopped_early)


def check_folder(recipe: Recipe, resume: bool) -> None:
    """Whether the output folder holds a run to go on with, or nothing that a new one would overwrite.

    Raises:
        ValueError: it does not; the message says what is there, or what is not.
    """
    folder = Path(recipe.output)
    state = folder / STATE
    if resume and not state.is_file():
        raise ValueError(f"there is no checkpoint {state} to go on from")
    if resume:
        return
    if state.is_file():
        raise ValueError(f"{folder} holds a run already; --resume goes on with it, another output begins anew")
    for name in ("config.json", "model.safetensors"):
        if (folder / name).exists():
            raise ValueError(f"{folder} holds a model already ({name}), which is not overwritten; give another output")
    # a run writes its recipe after its versions: without them it is somebody's own file
    if (folder / _RECIPE).exists() and not (folder / _VERSIONS).exists():
        raise ValueError(f"{folder / _RECIPE} is not of a run and is not overwritten; give another output")


def _check_select(recipe: Recipe, task: Task[Any]) -> None:
    known, told = ["loss", *task.scores], recipe.validation.select
    if told not in known:
        raise ValueError(f"validation.select is {told!r}, which is not measured{did_you_mean(told, known)}")


def _check_recipe(saved: Mapping[str, Any], recipe: Recipe) -> None:
    """Whether a checkpoint is of this recipe.

    Raises:
        ValueError: it is not; the message says what differs.
    """
    how = ("output:", "training.shard:")  # not what is learned
    different = [line for line in differences(saved, flat(recipe)) if not line.startswith(how)]
    if different:
        raise ValueError(
            f"the run in {recipe.output} is of another recipe and cannot be gone on with: {'; '.join(different)}"
        )


def _check_threads(saved: Mapping[str, Any], device: str, recipe: Recipe) -> None:
    """Check that a resumed run has as many threads as before: sums are split between them.

    With another number of processes a run may be resumed, but its weights differ anyway.

    Args:
        saved: what the checkpoint says of the run; one of an older version or an accelerator names no threads.
        device: what the run computes on.
        recipe: its recipe.

    Raises:
        ValueError: the number differs.
    """
    before, now = saved.get("threads"), torch.get_num_threads()
    if device == "cpu" and before not in (None, now) and saved.get("processes") == world_size():
        raise ValueError(
            f"the run in {recipe.output} computed with {before} threads, and now there are {now}: the weights would "
            f"differ from those of an uninterrupted run. Set OMP_NUM_THREADS={before}"
        )


def _check_data(saved: object, now: object, recipe: Recipe) -> None:
    """Whether a checkpoint is of this data.

    Raises:
        ValueError: it is not.
    """
    if saved != now:
        raise ValueError(
            f"the data of the run in {recipe.output}, or its tokenizer, is no longer the same; a resumed run needs "
            "what it began with"
        )


def _prepare(model: nn.Module, recipe: Recipe) -> None:
    """Gives a model the regularisers that live in it."""
    told = recipe.regularize
    regularizers.set_dropout(model, told.dropout)
    regularizers.set_layer_drop(model, told.layer_drop)
    if not told.layer_norm:
        regularizers.remove_norms(model)
    use_fast_dropout(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("model.freeze leaves nothing to train")


def _teacher(task: Task[Any], recipe: Recipe) -> nn.Module | None:
    told = recipe.regularize.distillation
    if told is None:
        return None
    if told.sequence:
        raise ValueError("`clearhead distill` learns the teacher's own texts (regularize.distillation.sequence)")
    return task.teacher(told.teacher).eval().requires_grad_(False)


def _trainer(recipe: Recipe, course: TrainingCallback, world: ProcessGroup) -> lightning.Trainer:
    told = recipe.training
    accelerator = {"cuda": "gpu"}.get(told.device, told.device)
    devices: Any = 1
    strategy: Any = "auto"
    if world.size > 1:
        from lightning.pytorch.strategies import DDPStrategy

        devices = world.local
        if told.shard:
            strategy = fsdp.ShardsStrategy(world.size, world.backend)
        else:  # layers may be left out, and a part frozen
            # gradients lie in the buckets that are sent: another copy of them would be as large as the weights
            strategy = DDPStrategy(
                find_unused_parameters=True, gradient_as_bucket_view=True, process_group_backend=world.backend
            )
    return lightning.Trainer(
        accelerator=accelerator,
        devices=devices,
        num_nodes=world.size // world.local,
        strategy=strategy,
        precision="bf16-mixed" if _low(recipe) else "32-true",
        max_epochs=1,
        accumulate_grad_batches=told.accumulate,
        callbacks=[course],
        plugins=[WholeCheckpoints()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )


def _low(recipe: Recipe) -> bool:
    """Whether to compute in bfloat16."""
    return choose_precision(recipe.training.precision, choose_device(recipe.training.device)).dtype == torch.bfloat16


def _finish(
    recipe: Recipe, task: Task[Any], shelf: CheckpointManager, course: TrainingCallback, folder: Path
) -> dict[str, float]:
    """Gives the folder its model, and says how good that is."""
    final = recipe.training.final or ("last" if shelf.best is None else "best")
    best = [] if shelf.best is None else [shelf.best]
    shelf.tidy()
    steps = {"best": best, "last": shelf.newest(), "average": shelf.last or shelf.newest()}[final]
    if not steps:
        return {}
    shelf.load(task.model, steps)
    task.model.to("cpu").eval()
    if recipe.regularize.layer_norm:
        task.save(folder)
    else:
        log.warning("a model without layer norms is in no library's layout: its weights are in %s alone", shelf.folder)
    scores = course.scores
    if course.validate is not None and steps != [course.scored]:
        scores = course.validate()
    write_json(folder / "training.json", {"step": course.step, "weights": final, "of_steps": steps, "scores": scores})
    return scores


def _write_recipe(recipe: Recipe, folder: Path) -> None:
    """The whole recipe, with its defaults, and the versions that it ran with."""
    write_json(
        folder / _VERSIONS,
        {
            "clearhead": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lightning": lightning.__version__,
            "numpy": np.__version__,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
    )
    with atomic_file(folder / _RECIPE) as file:
        told = recipe.model_dump(mode="json")
        file.write(yaml.safe_dump(told, sort_keys=False, allow_unicode=True).encode())


def _quiet() -> None:
    """Leaves out what Lightning says of things that are as they should be here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
