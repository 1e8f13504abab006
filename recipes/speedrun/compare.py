"""Compare changes of the speedrun's recipe, one at a time and at equal time.

Usage: python recipes/speedrun/compare.py OUT [key=value ...] [--updates N] [--seeds 1 2 3] [--only NAME ...]

First the time per update of each change is measured, alternately (OUT/milliseconds.json). Then each change is trained
with each seed, for as many updates as take the time of N updates of the recipe. Finished runs are kept, and several
processes may share the work with different seeds. OUT/table.md and OUT/losses.png have the finished runs.
key=value changes the recipe of all runs.
"""

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import ideas
import torch
from ideas import Idea

from clearhead import tune_process
from clearhead.io.json import read_json, write_json
from clearhead.train.data.sampler import TokenBatchSampler
from clearhead.train.loop import lightning_module
from clearhead.train.loop.lightning_module import DivergedError, TrainingModule
from clearhead.train.loop.metrics_logger import read_metrics
from clearhead.train.recipe.load import read_recipe
from clearhead.train.tasks.text_to_text import TextToTextTask
from clearhead.train.trainer import train

RECIPE = Path(__file__).with_name("multi30k.yaml")
BASELINE = "the recipe"


@dataclass(frozen=True)
class Change:
    """One change of the recipe.

    Args:
        keys: keys of the recipe with their new values.
        idea: a change that is not a key of a recipe.
    """

    keys: tuple[str, ...] = ()
    idea: Idea = field(default_factory=Idea)


ADAMW = ("optimizer.name=adamw", "optimizer.matrix_learning_rate=null")

CHANGES = {
    BASELINE: Change(),
    "AdamW in place of Muon": Change(
        (*ADAMW, "optimizer.learning_rate=0.003", "optimizer.warmup_steps=400", "regularize.weight_decay=0.1")
    ),
    "schedule-free AdamW": Change(
        (*ADAMW, "optimizer.schedule=constant", "optimizer.learning_rate=0.004", "regularize.weight_decay=0.1"),
        Idea(optimizer=ideas.schedule_free),
    ),
    "decay as 1/√step, average of 10 checkpoints": Change(
        ("optimizer.schedule=inverse-square-root", "training.keep_last=10", "training.final_weights=average")
    ),
    "cosine decay": Change(("optimizer.schedule=cosine",)),
    "learning rate of the matrices × 2": Change(("optimizer.matrix_learning_rate=0.01",)),
    "learning rate of all other weights × 2": Change(("optimizer.learning_rate=0.02",)),
    "learning rate of all other weights / 2": Change(("optimizer.learning_rate=0.005",)),
    "batches of half the size": Change(("data.batch_tokens=4096",)),
    "batches of twice the size": Change(("data.batch_tokens=16384",)),
    "batches that grow": Change(idea=Idea(batch_tokens=ideas.batches_that_grow)),
    "dropout 0.1": Change(("regularize.dropout=0.1",)),
    "dropout 0.3": Change(("regularize.dropout=0.3",)),
    "dropout that grows": Change(idea=Idea(before_update=ideas.dropout_that_grows)),
    "norm before the sub-layer": Change(("model.architecture=mbart",)),
    "QK-norm": Change(idea=Idea(change_model=ideas.qk_norm)),
    "value residuals": Change(idea=Idea(change_model=ideas.value_residual)),
    "ReLU²": Change(idea=Idea(change_model=ideas.squared_relu)),
    "smaller initial weights": Change(("model.initializer_range=0.02",)),
    "weight decay 0.1": Change(("regularize.weight_decay=0.1",)),
    "weight decay 1": Change(("regularize.weight_decay=1",)),
    "both directions in the first third": Change(("regularize.augmentation.bidirectional=0.33",)),
    "6 layers in the encoder and 2 in the decoder": Change(("model.num_layers=6", "model.decoder_num_layers=2")),
    "no label smoothing": Change(("regularize.label_smoothing=0",)),
    "R-Drop": Change(("regularize.r_drop=1.0",)),
}


@contextmanager
def changed(idea: Idea, total_steps: int) -> Iterator[None]:
    """Apply an idea to all training in this context."""
    from_recipe, start = TextToTextTask.from_recipe.__func__, TrainingModule.on_train_batch_start
    epoch = TokenBatchSampler.epoch

    def own_task(cls, recipe, folder):
        task = from_recipe(cls, recipe, folder)
        if idea.change_model:
            idea.change_model(task.model)
        return task

    def own_start(module, batch, index):
        start(module, batch, index)
        if idea.before_update:
            idea.before_update(module.model, (batch.step - 1) / total_steps)

    def own_epoch(sampler, number):
        batch_tokens = sampler.batch_tokens
        sampler.batch_tokens = idea.batch_tokens(number, batch_tokens)
        try:
            return epoch(sampler, number)
        finally:
            sampler.batch_tokens = batch_tokens

    def own_optimizer(model, settings, decay, dtype=None):
        return idea.optimizer(model, settings.learning_rate, settings.warmup_steps)

    with ExitStack() as stack:
        replace = lambda owner, name, new: stack.enter_context(mock.patch.object(owner, name, new))  # noqa: E731
        replace(TextToTextTask, "from_recipe", classmethod(own_task))
        replace(TextToTextTask, "samples", lambda task: [])
        replace(TextToTextTask, "save", lambda task, folder: None)
        replace(TrainingModule, "on_train_batch_start", own_start)
        if idea.batch_tokens:
            replace(TokenBatchSampler, "epoch", own_epoch)
        if idea.optimizer:
            replace(lightning_module, "create_optimizer", own_optimizer)
        yield


def run(change: Change, folder: Path, steps: int, keys: list[str]) -> list[float]:
    """Train with a change; return the time at the end of each update."""
    shutil.rmtree(folder, ignore_errors=True)
    recipe = read_recipe(RECIPE, [f"output={folder}", f"training.steps={steps}", *change.keys, *keys])
    times: list[float] = []
    with changed(change.idea, steps):
        train(recipe, on_step=lambda *_: times.append(time.perf_counter()))
    return times


def measure(names: list[str], out: Path, keys: list[str], steps: int, rounds: int = 3) -> dict[str, float]:
    """Return the median number of milliseconds per update of each change, from interleaved runs."""
    path = out / "milliseconds.json"
    known: dict[str, list[float]] = read_json(path) if path.exists() else {}
    quiet = ["validation.every=100000", "training.save_every=100000", "training.log_every=100000"]
    for _ in range(rounds):
        for name in names:
            if len(known.setdefault(name, [])) < rounds:
                times = run(CHANGES[name], out / "measured", steps, [*quiet, *keys])
                known[name].append(1000 * (times[-1] - times[steps // 4 - 1]) / (steps - steps // 4))
                write_json(path, known)
    return {name: statistics.median(known[name]) for name in names}


def compare(names: list[str], out: Path, updates: int, timed: int, seeds: list[int], keys: list[str]) -> None:
    """Train each change with each seed, and write its validation losses to a file of OUT."""
    milliseconds = measure([BASELINE, *(name for name in names if name != BASELINE)], out, keys, timed)
    for seed in seeds:
        for name in names:
            result = out / f"{list(CHANGES).index(name):02}-{seed}.json"
            if result.exists():
                continue
            steps = round(updates * milliseconds[BASELINE] / milliseconds[name])
            every = [f"validation.every={max(1, steps // 8)}", f"training.save_every={max(1, steps // 40)}"]
            folder = out / f"run-{seed}"
            try:
                run(CHANGES[name], folder, steps, [f"seed={seed}", *every, *keys])
                loss = read_json(folder / "training.json")["scores"]["loss"]
            except DivergedError:
                loss = float("inf")
            rows = [row for row in read_metrics(folder / "metrics.csv") if "validation_loss" in row]
            curve = [[row["step"] / steps, row["validation_loss"]] for row in rows]
            write_json(result, {"name": name, "seed": seed, "steps": steps, "loss": loss, "curve": curve})


@dataclass(frozen=True)
class Row:
    """The validation losses of a change, one for each seed, and its number of updates."""

    losses: list[float]
    updates: int

    @property
    def mean(self) -> float:
        return statistics.mean(self.losses)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.losses) if len(self.losses) > 1 else 0.0


def finished(out: Path) -> dict[str, Row]:
    """Return the finished runs of each change, in the order of `CHANGES`."""
    rows: dict[str, Row] = {}
    for path in sorted(out.glob("??-*.json")):
        result = read_json(path)
        earlier = rows[result["name"]].losses if result["name"] in rows else []
        rows[result["name"]] = Row([*earlier, result["loss"]], result["steps"])
    return rows


def table(rows: dict[str, Row]) -> str:
    """Return the losses as a table in Markdown."""
    lines = ["| change | updates | loss | difference | seeds |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        difference = "" if name == BASELINE else f"{row.mean - rows[BASELINE].mean:+.3f}".replace("-", "−")
        loss = f"{row.mean:.3f} ± {row.deviation:.3f}"
        lines.append(f"| {name} | {row.updates:,} | {loss} | {difference} | {len(row.losses)} |")
    return "\n".join(lines)


def plot(rows: dict[str, Row], path: Path) -> None:
    """Draw the difference that each change makes, the best one at the top."""
    from matplotlib.figure import Figure

    changes = sorted((name for name in rows if name != BASELINE), key=lambda name: -rows[name].mean)
    figure = Figure(figsize=(8, 1.2 + 0.3 * len(changes)), layout="constrained")
    axes = figure.subplots()
    for height, name in enumerate(changes):
        change = rows[name].mean - rows[BASELINE].mean
        color = "tab:green" if change < 0 else "tab:orange"
        axes.barh(height, change, xerr=rows[name].deviation, color=color, capsize=3)
    axes.set_yticks(range(len(changes)), changes)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(f"change of the validation loss from {rows[BASELINE].mean:.3f}; lower is better")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("keys", nargs="*", help="key=value")
    parser.add_argument("--updates", type=int, default=1000, help="updates of the unchanged recipe")
    parser.add_argument("--timed", type=int, default=40, help="updates in each of three measurements of the time")
    parser.add_argument(
        "--seeds", type=int, nargs="*", default=[1, 2, 3], help="without a seed only the time is measured"
    )
    parser.add_argument("--only", nargs="+", default=list(CHANGES), choices=CHANGES, metavar="NAME")
    parser.add_argument("--threads", type=int, help="number of CPU threads; 1 for two processes on two cores")
    args = parser.parse_args()
    tune_process()
    if args.threads:
        torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    compare(args.only, args.out, args.updates, args.timed, args.seeds, args.keys)
    rows = finished(args.out)
    if BASELINE in rows:
        print(table(rows))
        (args.out / "table.md").write_text(table(rows) + "\n", encoding="utf-8")
        plot(rows, args.out / "losses.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
