"""A recipe becomes a model's folder."""

import contextlib
import json
import logging
import math
import os
import platform
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import lightning
import numpy as np
import torch
import yaml
from torch import nn

from clearhead import __version__
from clearhead.checkpoints import directory
from clearhead.files import whole_file
from clearhead.layers.dropout import cheap_dropout
from clearhead.run.precision import device_named, dtype_for
from clearhead.text.records import Records
from clearhead.train import regularize
from clearhead.train.batches import Batches, sequential
from clearhead.train.course import Advance, Course
from clearhead.train.journal import Journal
from clearhead.train.learner import Learner
from clearhead.train.loader import Loader
from clearhead.train.recipe import Files, Recipe, differences, flat, nearest
from clearhead.train.shelf import Shelf, WholeCheckpoints, read_state
from clearhead.train.store import Store, build_store
from clearhead.train.task import Task
from clearhead.train.tasks import task_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
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


def train(recipe: Recipe, *, resume: bool = False, advance: Advance = lambda step, steps, told: None) -> Trained:
    """Trains a model as a recipe says, into the recipe's output folder.

    Args:
        recipe: from `read_recipe`.
        resume: go on from the folder's checkpoint, to the very weights that a run without an interruption ends in.
        advance: told of each step, for a progress bar.

    Raises:
        ValueError: files or a model that are not what the recipe says, a folder that holds another run, a loss that is
            no number.
        OSError: a disk that is full.

    >>> from clearhead.train.recipe import read_recipe; from clearhead.train.run import train
    >>> train(read_recipe("recipes/tiny/translation.yaml")).folder  # doctest: +SKIP
    PosixPath('runs/tiny-translation')
    """
    _quiet()
    device_named(recipe.training.device)
    folder = Path(recipe.output)
    shelf = Shelf(folder, recipe.training.keep_last)
    _check_folder(recipe, folder, shelf, resume)
    saved = read_state(shelf.state) if resume else None
    if saved is not None:
        _check_recipe(saved["clearhead"]["recipe"], recipe)
    world = _World()
    _seed(recipe.seed)
    with world.first():
        folder.mkdir(parents=True, exist_ok=True)
        task = task_of(recipe, folder)
        _check_select(recipe, task)
        teacher = _teacher(task, recipe)
        data, held_out = _stores(recipe, task, folder)
    identity = {
        "recipe": flat(recipe),
        "data": [task.key(), data.fingerprint(), None if held_out is None else held_out.fingerprint()],
    }
    if saved is not None:
        _check_data(saved["clearhead"]["data"], identity["data"], recipe)
    _prepare(task.model, recipe)
    loader = _loader(recipe, task, data, world)
    validate = None if held_out is None else _validation(task, held_out, recipe)
    course = Course(recipe, shelf, validate, identity, advance)
    learner = Learner(task, recipe, loader.steps, teacher)
    trainer = _trainer(recipe, course, world)
    if saved is not None:
        course.load_state_dict(saved["callbacks"][course.state_key])
    if course.done(loader.steps):
        log.info("the run in %s is finished: step %d", folder, course.step)
    else:
        if world.rank == 0:
            _write_recipe(recipe, folder)
            course.journal = Journal(folder, task.scores, course.step)
        with _stopping(course):
            trainer.fit(learner, loader, ckpt_path=None if saved is None else str(shelf.state), weights_only=True)
        if course.journal is not None:
            course.journal.close()
    scores = _finish(recipe, task, shelf, course, folder) if world.rank == 0 else {}
    world.close()
    return Trained(folder, course.step, scores, course.done(loader.steps), course.stopped_early)


class _World:
    """The processes of a run: this one alone, or those that `torchrun` started."""

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0")) if self.size > 1 else 0
        self.local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if self.size > 1 and not torch.distributed.is_initialized():
            # an hour: the others wait while the first one reads the data
            torch.distributed.init_process_group(self.backend, timeout=timedelta(hours=1))

    @property
    def backend(self) -> str:
        """What the processes talk by."""
        return "nccl" if torch.cuda.is_available() else "gloo"

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """A block that the first process runs before all others."""
        if self.rank > 0:
            torch.distributed.barrier()
        yield
        if self.size > 1 and self.rank == 0:
            torch.distributed.barrier()

    def close(self) -> None:
        """Waits for all, and ends their talk."""
        if self.size > 1 and torch.distributed.is_initialized():
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()


def _check_folder(recipe: Recipe, folder: Path, shelf: Shelf, resume: bool) -> None:
    if resume and not shelf.state.is_file():
        raise ValueError(f"there is no checkpoint {shelf.state} to go on from")
    if not resume and shelf.state.is_file():
        raise ValueError(f"{folder} holds a run already; --resume goes on with it, another output begins anew")


def _check_select(recipe: Recipe, task: Task[Any]) -> None:
    known, told = ["loss", *task.scores], recipe.validation.select
    if told not in known:
        raise ValueError(f"validation.select is {told!r}, which is not measured{nearest(told, known)}")


def _check_recipe(saved: Mapping[str, Any], recipe: Recipe) -> None:
    """Whether a checkpoint is of this recipe.

    Raises:
        ValueError: it is not; the message says what differs.
    """
    different = [line for line in differences(saved, flat(recipe)) if not line.startswith("output:")]
    if different:
        raise ValueError(
            f"the run in {recipe.output} is of another recipe and cannot be gone on with: {'; '.join(different)}"
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


def _stores(recipe: Recipe, task: Task[Any], folder: Path) -> tuple[Store, Store | None]:
    """Training and held-out examples, made once and then read from the run's folder."""

    def store(name: str, source: Files) -> Store:
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
            reasons.append(f"{task.longer - longer:,}: target too long")
        left_out = f"; left out: {', '.join(reasons)}" if reasons else ""
        shorter = f"; cut after {recipe.data.max_length} tokens: {task.cut - cut:,}" if task.cut > cut else ""
        log.info("%s: %d examples%s%s", name, len(built), left_out, shorter)
        return built

    # the held-out data first: it is the smaller one, and what is wrong with it is said before long work
    held_out = None if recipe.data.validation is None else store("validation", recipe.data.validation)
    return store("training", recipe.data.train), held_out


def _prepare(model: nn.Module, recipe: Recipe) -> None:
    """Gives a model the regularisers that live in it."""
    told = recipe.regularize
    regularize.set_dropout(model, told.dropout)
    regularize.set_layer_drop(model, told.layer_drop)
    if not told.layer_norm:
        regularize.without_norms(model)
    cheap_dropout(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("model.freeze leaves nothing to train")


def _teacher(task: Task[Any], recipe: Recipe) -> nn.Module | None:
    told = recipe.regularize.distillation
    if told is None:
        return None
    if told.sequence:
        raise ValueError("`clearhead distill` learns the teacher's own texts (regularize.distillation.sequence)")
    return task.teacher(told.teacher).eval().requires_grad_(False)


def _loader(recipe: Recipe, task: Task[Any], data: Store, world: _World) -> Loader:
    batches = Batches(
        data.lengths, batch_tokens=recipe.data.batch_tokens, seed=recipe.seed, batch_size=recipe.data.batch_size
    )
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


def _validation(task: Task[Any], held_out: Store, recipe: Recipe) -> Callable[[], dict[str, float]]:
    """Measures a task's model as it is: the loss without regularisers, and the task's scores."""
    lengths = held_out.lengths[: recipe.validation.examples]
    plan = sequential(lengths, batch_tokens=recipe.data.batch_tokens, batch_size=recipe.data.batch_size)

    def loss() -> float:
        total, count = 0.0, 0
        device = next(task.model.parameters()).device
        for number, rows in enumerate(plan):
            draws = np.random.default_rng(number)
            batch = task.collate([held_out[int(row)] for row in rows], draws, learning=False).to(device)
            total += float(regularize.objective(task.guess(task.model, batch, masked=True)))
            count += batch.count
        return total / max(1, count)

    def measure() -> dict[str, float]:
        task.model.eval()
        try:
            with torch.inference_mode():
                return {"loss": loss(), **task.validate()}
        finally:
            task.model.train()

    return measure


def _trainer(recipe: Recipe, course: Course, world: _World) -> lightning.Trainer:
    told = recipe.training
    accelerator = {"cuda": "gpu"}.get(told.device, told.device)
    devices: Any = 1
    strategy: Any = "auto"
    if world.size > 1:
        from lightning.pytorch.strategies import DDPStrategy

        devices = world.local
        # layers may be left out, and a part frozen
        strategy = DDPStrategy(find_unused_parameters=True, process_group_backend=world.backend)
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
    return dtype_for(recipe.training.precision, device_named(recipe.training.device)) == torch.bfloat16


def _finish(recipe: Recipe, task: Task[Any], shelf: Shelf, course: Course, folder: Path) -> dict[str, float]:
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
    directory.write_json(
        folder / "training.json", {"step": course.step, "weights": final, "of_steps": steps, "scores": scores}
    )
    return scores


def _write_recipe(recipe: Recipe, folder: Path) -> None:
    """The whole recipe, with its defaults, and the versions that it ran with."""
    with whole_file(folder / "recipe.yaml") as file:
        told = recipe.model_dump(mode="json")
        file.write(yaml.safe_dump(told, sort_keys=False, allow_unicode=True).encode())
    directory.write_json(
        folder / "versions.json",
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


@contextlib.contextmanager
def _stopping(course: Course) -> Iterator[None]:
    """Ctrl-C and the end of a machine's time stop a run after the step that it is in; a second Ctrl-C stops at once."""

    asked = math.nan

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        now = time.monotonic()
        # one Ctrl-C may come twice: from the terminal and from `torchrun`
        if number == signal.SIGINT and now - asked > 1.0:
            raise SystemExit(130)
        if not course.asked_to_stop:
            asked, course.asked_to_stop = now, True
            log.warning("stopping after this step")

    def listen() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)

    before = {}
    if threading.current_thread() is threading.main_thread():  # no other hears signals
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        course.listen = listen
        listen()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)


def _quiet() -> None:
    """Leaves out what Lightning says of things that are as they should be here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
