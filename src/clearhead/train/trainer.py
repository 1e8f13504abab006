"""Train a model from a recipe."""

import contextlib
import logging
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
import yaml
from torch import nn

from clearhead._version import __version__
from clearhead.choices import suggest
from clearhead.io.atomic import atomic_file
from clearhead.io.json import write_json
from clearhead.io.locks import folder_lock
from clearhead.io.outputs import check_not_input
from clearhead.io.safetensors import weights_hash
from clearhead.layers.dropout import use_fast_dropout
from clearhead.runtime.device import choose_device
from clearhead.runtime.precision import choose_precision
from clearhead.train.data.dataloader import TrainingDataLoader
from clearhead.train.data.dataset import TokenizedDataset
from clearhead.train.data.files import recipe_files
from clearhead.train.data.loaders import build_datasets, build_loader, build_validator, sample_predictions
from clearhead.train.data.top_tokens import StoredTopTokens, build_top_tokens
from clearhead.train.distributed.process_group import ProcessGroup, is_rank_zero
from clearhead.train.loop.callback import OnStep, TrainingCallback
from clearhead.train.loop.checkpointing import CheckpointManager
from clearhead.train.loop.lightning_module import TrainingModule, warmup_steps
from clearhead.train.loop.lightning_trainer import lightning_trainer, suppress_lightning_messages
from clearhead.train.loop.metrics_logger import MetricsLogger
from clearhead.train.loop.resume import RECIPE_FILE, VERSIONS_FILE, SavedRun, check_folder
from clearhead.train.loop.signals import stop_on_signals
from clearhead.train.memory import describe_model
from clearhead.train.recipe.errors import RecipeError, named
from clearhead.train.recipe.load import flatten
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.regularizers import prepare_model
from clearhead.train.tasks.base import Task
from clearhead.train.tasks.registry import create_task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training run.

    Args:
        folder: folder of the saved model.
        step: number of updates.
        weights: which weights the saved model has: "best", "last" or "average".
        weights_of: the steps that they are from; [] if none were saved.
        scores: metrics of these weights on the held-out data; {} without held-out data.
        finished: whether the run finished, rather than being stopped by a signal.
        stopped_early: whether early stopping ended it.
    """

    folder: Path
    step: int
    weights: str
    weights_of: list[int]
    scores: dict[str, float]
    finished: bool
    stopped_early: bool


def ignore_step(step: int, total_steps: int, message: str) -> None:
    """Do nothing after a step."""


def train(recipe: Recipe, *, resume: bool = False, on_step: OnStep = ignore_step) -> TrainingResult:
    """Train a model from a recipe and save it in the recipe's output folder.

    Args:
        recipe: from `read_recipe`.
        resume: continue from the folder's checkpoint, if there is one. The weights are the same as without the
            interruption.
        on_step: called after each step, for a progress bar.

    Raises:
        OutputBusyError: another process trains into the folder.
        ValueError: files or a model that do not fit the recipe, a folder that contains another run, or a loss that is
            NaN or infinite.
        OSError: the disk is full.

    >>> from clearhead.train.recipe.load import read_recipe; from clearhead.train.trainer import train
    >>> train(read_recipe("recipes/tiny/translation.yaml")).folder  # doctest: +SKIP
    PosixPath('runs/tiny-translation')
    """
    with run_lock(recipe):
        return train_locked(recipe, resume=resume, on_step=on_step)


@contextlib.contextmanager
def run_lock(recipe: Recipe) -> Iterator[None]:
    """Hold the lock of a recipe's output folder; rank 0 holds it for all processes of a run.

    Raises:
        OutputBusyError: another process writes into the folder.
        ValueError: it is a file, or contains data of the recipe.
    """
    if not is_rank_zero():
        yield
        return
    folder = Path(recipe.output)
    if folder.is_file():
        raise ValueError(f"output is {folder}, a file; expected a folder")
    check_not_input(folder, recipe_files(recipe.data))
    with folder_lock(folder):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # empty if the run failed before its first file was complete
                (folder / "data").rmdir()


def train_locked(recipe: Recipe, *, resume: bool, on_step: OnStep) -> TrainingResult:
    """Train as `train` does, in a folder whose `run_lock` the caller holds."""
    with suppress_lightning_messages():
        return _train(recipe, resume, on_step)


def _train(recipe: Recipe, resume: bool, on_step: OnStep) -> TrainingResult:
    with named("training.device"):
        device = choose_device(recipe.training.device).type
    saved = SavedRun.read(recipe, device) if check_folder(recipe, resume) else None
    if resume and saved is None:
        log.info("%s has no checkpoint to resume from: this is a new run", recipe.output)
    if recipe.training.steps is not None:  # else the number of steps depends on the data, which is read later
        _warn_of_shorter_warmup(recipe, recipe.training.steps)
    processes = ProcessGroup(device)
    torch.manual_seed(recipe.seed)
    inputs = _prepare_inputs(recipe, processes)
    identity = _identity(recipe, inputs, device, processes)
    if saved is not None:
        saved.check_data(identity["data"])
        saved.check_teacher(identity["teacher"])
    prepare_for_training(inputs.task.model, recipe)
    run = _assemble(recipe, inputs, identity, processes, on_step)
    if saved is not None:
        saved.restore(run.callback)
    _log_plan(run)
    _fit(run, saved)
    weights, steps, scores = _save_final_model(run) if processes.rank == 0 else ("", [], {})
    processes.close()
    callback = run.callback
    finished = callback.is_finished(run.loader.total_steps)
    return TrainingResult(run.folder, callback.step, weights, steps, scores, finished, callback.stopped_early)


@dataclass(frozen=True)
class _Inputs:
    """Inputs of a run: task with model, teachers with the tokens that are stored, and datasets."""

    task: Task[Any]
    teachers: list[nn.Module]
    top_tokens: StoredTopTokens | None
    training: TokenizedDataset
    validation: TokenizedDataset | None


@dataclass(frozen=True)
class _Run:
    """Parts of a run that is ready to train."""

    recipe: Recipe
    folder: Path
    task: Task[Any]
    loader: TrainingDataLoader
    module: TrainingModule
    callback: TrainingCallback
    checkpoints: CheckpointManager
    processes: ProcessGroup


def _prepare_inputs(recipe: Recipe, processes: ProcessGroup) -> _Inputs:
    """Initialize the model and build the datasets; rank 0 writes the files that the others read."""
    folder = Path(recipe.output)
    with processes.rank_zero_first():
        folder.mkdir(parents=True, exist_ok=True)
        task = create_task(recipe, folder)
        _check_monitor(recipe, task)
        teachers = load_teachers(task, recipe)
        training, validation = build_datasets(recipe, task, folder)
        top_tokens = _build_top_tokens(recipe, task, teachers, training)
    return _Inputs(task, teachers, top_tokens, training, validation)


def _build_top_tokens(
    recipe: Recipe, task: Task[Any], teachers: list[nn.Module], dataset: TokenizedDataset
) -> StoredTopTokens | None:
    settings = recipe.regularize.distillation
    if settings is None or settings.top_tokens is None:
        return None
    vocabulary = task.model.config.vocab_size
    if settings.top_tokens > vocabulary:
        raise RecipeError(
            f"regularize.distillation.top_tokens is {settings.top_tokens}, but the vocabulary has {vocabulary} tokens"
        )
    return build_top_tokens(
        Path(recipe.output) / "data" / "top-tokens",
        *(task, teachers, dataset),
        num_tokens=settings.top_tokens,
        batch_tokens=recipe.data.batch_tokens,
        device=choose_device(recipe.training.device),
    )


def _check_monitor(recipe: Recipe, task: Task[Any]) -> None:
    metrics, monitor = ("loss", *task.metrics), recipe.validation.monitor
    if monitor not in metrics:
        raise RecipeError(f"validation.monitor is {monitor!r}, which is not computed{suggest(monitor, metrics)}")


def load_teachers(task: Task[Any], recipe: Recipe) -> list[nn.Module]:
    """Load a recipe's teachers, in evaluation mode and without gradients; none without distillation."""
    settings = recipe.regularize.distillation
    if settings is None:
        return []
    if settings.sequence_level:
        raise RecipeError("regularize.distillation.sequence_level requires `clearhead distill`")
    return [task.load_teacher(name).eval().requires_grad_(False) for name in settings.teachers]


def _identity(recipe: Recipe, inputs: _Inputs, device: str, processes: ProcessGroup) -> dict[str, Any]:
    """Return the properties of a run that have to be the same when it is resumed."""
    validation = inputs.validation
    return {
        "recipe": flatten(recipe),
        "data": [
            inputs.task.cache_key(),
            inputs.training.fingerprint(),
            None if validation is None else validation.fingerprint(),
        ],
        "teacher": "+".join(weights_hash(teacher.state_dict()) for teacher in inputs.teachers) or None,
        "threads": torch.get_num_threads() if device == "cpu" else None,
        "processes": processes.size,
    }


def prepare_for_training(model: nn.Module, recipe: Recipe) -> None:
    """Apply the regularizers that change the model, and replace its dropout with the faster one.

    Raises:
        ValueError: no parameter is left to train.
    """
    prepare_model(model, recipe.regularize)
    use_fast_dropout(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RecipeError("model.freeze leaves no parameter to train")


def _assemble(
    recipe: Recipe, inputs: _Inputs, identity: dict[str, Any], processes: ProcessGroup, on_step: OnStep
) -> _Run:
    folder, task = Path(recipe.output), inputs.task
    loader = build_loader(recipe, task, inputs.training, processes)
    validate = None if inputs.validation is None else build_validator(task, inputs.validation, recipe)
    checkpoints = CheckpointManager(folder, recipe.training.keep_last)
    callback = TrainingCallback(recipe, checkpoints, validate, lambda: sample_predictions(task), identity, on_step)
    loader.stop_requested = lambda: callback.stop_requested
    sharded = recipe.training.fsdp and processes.size > 1
    if recipe.training.fsdp and not sharded:
        log.warning("training.fsdp shards only over several processes, which torchrun starts; this run has one")
    teachers = inputs.teachers if inputs.top_tokens is None else inputs.top_tokens
    module = TrainingModule(task, recipe, loader.total_steps, teachers, sharded)
    return _Run(recipe, folder, task, loader, module, callback, checkpoints, processes)


def _log_plan(run: _Run) -> None:
    """Log the size of the model and the length of the run."""
    recipe, total_steps = run.recipe, run.loader.total_steps
    if run.callback.is_finished(total_steps):
        return
    log.info("model: %s", describe_model(run.task.model))
    device = choose_device(recipe.training.device)
    precision = choose_precision(recipe.training.precision, device).name
    count = torch.get_num_threads()
    threads = f" with {count} thread{'s' if count > 1 else ''}" if device.type == "cpu" else ""
    log.info("run: %s steps on %s in %s%s", f"{total_steps:,}", device, precision, threads)
    optimizer = recipe.optimizer
    log.info(
        "optimizer: peak learning rate %g, %s schedule, %d warmup steps%s",
        *(optimizer.learning_rate, optimizer.schedule, warmup_steps(optimizer, total_steps)),
        "" if recipe.model.init_from is None else f", fine-tuning {recipe.model.init_from}",
    )
    if run.callback.step:
        log.info("resuming %s after step %s of %s", run.folder, f"{run.callback.step:,}", f"{total_steps:,}")
    if recipe.training.steps is None:
        _warn_of_shorter_warmup(recipe, total_steps)


def _warn_of_shorter_warmup(recipe: Recipe, total_steps: int) -> None:
    warmup = warmup_steps(recipe.optimizer, total_steps)
    if warmup < recipe.optimizer.warmup_steps:
        log.warning(
            "optimizer.warmup_steps is %d, but the run has %d steps: the warmup is shortened to %d",
            *(recipe.optimizer.warmup_steps, total_steps, warmup),
        )


def _fit(run: _Run, saved: SavedRun | None) -> None:
    """Train until the run is finished or a signal stops it."""
    recipe, callback = run.recipe, run.callback
    trainer = lightning_trainer(recipe, callback, run.processes)
    if callback.is_finished(run.loader.total_steps):
        log.info("the run in %s is finished: step %d", run.folder, callback.step)
        return
    if run.processes.rank == 0:
        _write_recipe(recipe, run.folder)
        callback.metrics_logger = MetricsLogger(run.folder, run.task.metrics, callback.step, callback.rows)
    checkpoint = None if saved is None else str(run.checkpoints.state_path)
    with stop_on_signals(callback):
        trainer.fit(run.module, run.loader, ckpt_path=checkpoint, weights_only=True)
    if callback.metrics_logger is not None:
        callback.metrics_logger.close()


def _save_final_model(run: _Run) -> tuple[str, list[int], dict[str, float]]:
    """Save the model with the recipe's final weights; return these, their steps and their metrics."""
    task, checkpoints, callback, folder = run.task, run.checkpoints, run.callback, run.folder
    final = run.recipe.training.final_weights or ("last" if checkpoints.best is None else "best")
    best = [] if checkpoints.best is None else [checkpoints.best]
    checkpoints.prune()
    steps = {"best": best, "last": checkpoints.latest(), "average": checkpoints.last or checkpoints.latest()}[final]
    if not steps:
        return final, steps, {}
    checkpoints.load(task.model, steps)
    task.model.to("cpu").eval()
    scores = callback.scores
    if callback.validate is not None and steps != [callback.validated_step]:
        scores = callback.validate()
    finished = callback.is_finished(run.loader.total_steps)
    result = {"finished": finished, "step": callback.step, "weights": final, "of_steps": steps, "scores": scores}
    if not finished:  # before the model, so that an interrupted one is always marked
        write_json(folder / "training.json", result)
    if run.recipe.regularize.layer_norm:
        task.save(folder)
    else:
        log.warning(
            "no model format supports a model without layer norms; its weights are only in %s", checkpoints.folder
        )
    if finished:
        write_json(folder / "training.json", result)
    return final, steps, scores


def _write_recipe(recipe: Recipe, folder: Path) -> None:
    """Write the recipe with its defaults, and the versions of the libraries."""
    write_json(
        folder / VERSIONS_FILE,
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
    with atomic_file(folder / RECIPE_FILE) as file:
        file.write(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True).encode())
