"""Compare changes of the speedrun's recipe, one at a time and at equal time.

Usage: python recipes/speedrun/compare.py REPORT.json [key=value ...] [--updates N] [--seeds 1 2 3] [--only NAME ...]

First the time per update of each change is measured, alternately, unless it computes the same. Then each change is
trained with each seed, for as many updates as take the time of N updates of the recipe. REPORT.json keeps the times and
the finished runs: another call continues, and several processes may share the work. The table is printed, and the plots
are written next to the report. key=value changes the recipe of all runs.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import ideas
import torch
from ideas import Idea

from clearhead import tune_process
from clearhead.benchmark.hardware import hardware_info
from clearhead.io.json import read_json, write_json
from clearhead.io.locks import writer_lock
from clearhead.train.data.sampler import TokenBatchSampler
from clearhead.train.loop import lightning_module
from clearhead.train.loop.lightning_module import DivergedError, TrainingModule
from clearhead.train.loop.metrics_logger import read_metrics
from clearhead.train.recipe.load import read_recipe
from clearhead.train.tasks.text_to_text import TextToTextTask
from clearhead.train.trainer import train

RECIPE = Path(__file__).with_name("multi30k.yaml")
BASELINE = "the recipe"
HALF_BATCHES = "batches of half the size"


@dataclass(frozen=True)
class Change:
    """One change of the recipe.

    Args:
        keys: keys of the recipe with their new values.
        idea: a change that is not a key of a recipe.
        same_work: whether an update computes the same, with other numbers. Then its time is not measured.
        first_updates: a number of updates, and the change that they take the time of. The others take the recipe's.
    """

    keys: tuple[str, ...] = ()
    idea: Idea = field(default_factory=Idea)
    same_work: bool = False
    first_updates: tuple[int, str] | None = None


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
    "decay as 1/√step, average of 5 checkpoints": Change(
        ("optimizer.schedule=inverse-square-root", "training.keep_last=5", "training.final_weights=average"),
        same_work=True,
    ),
    "cosine decay": Change(("optimizer.schedule=cosine",), same_work=True),
    "rate of the matrices / 2": Change(("optimizer.matrix_learning_rate=0.005",), same_work=True),
    "rate of all other weights × 2": Change(("optimizer.learning_rate=0.04",), same_work=True),
    "rate of all other weights / 2": Change(("optimizer.learning_rate=0.01",), same_work=True),
    HALF_BATCHES: Change(("data.batch_tokens=4096",)),
    "batches of twice the size": Change(("data.batch_tokens=16384",)),
    "batches that grow": Change(
        idea=Idea(change_batches=ideas.batches_that_grow), first_updates=(2 * ideas.HALVED_BATCHES, HALF_BATCHES)
    ),
    "dropout 0.1": Change(("regularize.dropout=0.1",), same_work=True),
    "dropout 0.25": Change(("regularize.dropout=0.25",), same_work=True),
    "dropout that grows": Change(idea=Idea(before_update=ideas.dropout_that_grows), same_work=True),
    "norm before the sub-layer": Change(("model.architecture=mbart",)),
    "QK-norm": Change(idea=Idea(change_model=ideas.qk_norm)),
    "value residuals": Change(idea=Idea(change_model=ideas.value_residual)),
    "ReLU²": Change(idea=Idea(change_model=ideas.squared_relu)),
    "scale of the output in place of the embeddings": Change(
        idea=Idea(change_model=ideas.scale_the_output), same_work=True
    ),
    "smaller initial weights": Change(("model.initializer_range=0.02",), same_work=True),
    "weight decay 0.1": Change(("regularize.weight_decay=0.1",), same_work=True),
    "weight decay 1.2": Change(("regularize.weight_decay=1.2",), same_work=True),
    "both directions in the first third": Change(("regularize.augmentation.bidirectional=0.33",)),
    "split tokens": Change(idea=Idea(change_pairs=ideas.split_tokens)),
    "6 layers in the encoder and 2 in the decoder": Change(("model.num_layers=6", "model.decoder_num_layers=2")),
    "no label smoothing": Change(("regularize.label_smoothing=0",), same_work=True),
    "sampled softmax": Change(("objective.sampled_softmax=1000",)),
    "R-Drop": Change(("regularize.r_drop=1.0",)),
}


@contextmanager
def changed(idea: Idea, total_steps: int) -> Iterator[None]:
    """Apply an idea to all training in this context."""
    init, start = TextToTextTask.__init__, TrainingModule.on_train_batch_start
    epoch, collate = TokenBatchSampler.epoch, TextToTextTask.collate

    def own_init(task, *args):
        init(task, *args)
        if idea.change_model:
            idea.change_model(task.model)
        if idea.change_pairs:
            task.change_pairs = idea.change_pairs(task.tokenizer)

    def own_start(module, batch, index):
        start(module, batch, index)
        if idea.before_update:
            idea.before_update(module.model, (batch.step - 1) / total_steps)

    def own_collate(task, examples, generator, *, training):
        pairs = task.change_pairs(examples, generator) if training else examples
        return collate(task, pairs, generator, training=training)

    def own_epoch(sampler, number):
        return idea.change_batches(number, epoch(sampler, number))

    def own_optimizer(model, settings, decay, dtype=None):
        return idea.optimizer(model, settings.learning_rate, settings.warmup_steps)

    with ExitStack() as stack:
        replace = lambda owner, name, new: stack.enter_context(mock.patch.object(owner, name, new))  # noqa: E731
        replace(TextToTextTask, "__init__", own_init)
        replace(TextToTextTask, "samples", lambda task: [])
        replace(TextToTextTask, "save", lambda task, folder: None)
        replace(TrainingModule, "on_train_batch_start", own_start)
        if idea.change_pairs:
            replace(TextToTextTask, "collate", own_collate)
        if idea.change_batches:
            replace(TokenBatchSampler, "epoch", own_epoch)
        if idea.optimizer:
            replace(lightning_module, "create_optimizer", own_optimizer)
        yield


def run(change: Change, folder: Path, steps: int, keys: list[str], path: Path = RECIPE) -> list[float]:
    """Train a recipe with a change; return the time at the end of each update."""
    recipe = read_recipe(path, [f"output={folder}", f"training.steps={steps}", *change.keys, *keys])
    times: list[float] = []
    with changed(change.idea, steps):
        train(recipe, on_step=lambda *_: times.append(time.perf_counter()))
    return times


@contextmanager
def changed_report(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the report to change it; other processes wait."""
    with writer_lock(path, wait=math.inf):
        report = read_report(path)
        yield report
        write_json(path, report)


def read_report(path: Path) -> dict[str, Any]:
    """Return the report: the milliseconds per update of each change, and the finished runs."""
    return read_json(path) if path.exists() else {"milliseconds": {}, "runs": []}


def time_per_update(change: Change, steps: int, keys: list[str], path: Path = RECIPE) -> float:
    """Return the milliseconds per update of a short run, without its first quarter."""
    quiet = ["validation.every=100000", "training.save_every=100000", "training.log_every=100000"]
    with TemporaryDirectory() as folder:
        times = run(change, Path(folder) / "run", steps, [*quiet, *keys], path)
    return 1000 * (times[-1] - times[steps // 4 - 1]) / (steps - steps // 4)


def measure(names: list[str], path: Path, keys: list[str], steps: int, rounds: int = 3) -> None:
    """Add the milliseconds per update of changes to the report, from interleaved runs."""
    for number in range(rounds):
        for name in names:
            if len(read_report(path)["milliseconds"].get(name, [])) <= number:
                per_update = time_per_update(CHANGES[name], steps, keys)
                with changed_report(path) as report:
                    report["machine"] = hardware_info(torch.get_num_threads(), ["clearhead", "torch"])
                    report["milliseconds"].setdefault(name, []).append(per_update)


def compare(names: list[str], path: Path, updates: int, timed: int, seeds: list[int], keys: list[str]) -> None:
    """Train each change with each seed, and add its validation scores to the report."""
    measure(measured_changes(names), path, keys, timed)
    times = milliseconds(read_report(path))
    for seed in seeds:
        for name in names:
            if any((result["name"], result["seed"]) == (name, seed) for result in read_report(path)["runs"]):
                continue
            steps = updates_in_time(name, updates * times[BASELINE], times)
            every = [f"validation.every={max(1, steps // 8)}", f"training.save_every={max(1, steps // 8)}"]
            bleu = ["validation.metrics=[bleu]", "validation.max_new_tokens=60"]
            with TemporaryDirectory() as folder:
                result = Path(folder) / "run"
                try:
                    run(CHANGES[name], result, steps, [f"seed={seed}", *every, *bleu, *keys])
                    scores = read_json(result / "training.json")["scores"]
                except DivergedError:
                    scores = {"loss": math.inf, "bleu": 0.0}
                rows = [row for row in read_metrics(result / "metrics.csv") if "validation_loss" in row]
            curve = [[row["step"], row["validation_loss"], row["bleu"]] for row in rows]
            with changed_report(path) as report:
                report["runs"].append({"name": name, "seed": seed, "steps": steps, **scores, "curve": curve})


def measured_changes(names: list[str]) -> list[str]:
    """Return the recipe and the changes whose time per update has to be measured to compare some changes."""
    needed = {CHANGES[name].first_updates[1] if CHANGES[name].first_updates else name for name in names}
    return [name for name in CHANGES if name == BASELINE or (name in needed and not CHANGES[name].same_work)]


def milliseconds(report: dict[str, Any]) -> dict[str, float]:
    """Return the milliseconds per update of each change."""
    times = {name: statistics.median(values) for name, values in report["milliseconds"].items()}
    is_same = {name: change.same_work or change.first_updates is not None for name, change in CHANGES.items()}
    return {name: times.get(BASELINE if is_same[name] else name, math.nan) for name in CHANGES}


def updates_in_time(name: str, total: float, times: dict[str, float]) -> int:
    """Return the number of updates of a change that take a total number of milliseconds."""
    if first_updates := CHANGES[name].first_updates:
        number, same = first_updates
        first = min(number, total / times[same])
        return round(first + (total - first * times[same]) / times[name])
    return round(total / times[name])


@dataclass(frozen=True)
class Row:
    """The finished runs of a change, one for each seed."""

    runs: list[dict[str, Any]]

    @property
    def losses(self) -> list[float]:
        return [run["loss"] for run in self.runs]

    @property
    def mean(self) -> float:
        return statistics.mean(self.losses)

    @property
    def bleu(self) -> float:
        return statistics.mean(run["bleu"] for run in self.runs)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.losses) if len(self.runs) > 1 and self.finite else 0.0

    @property
    def finite(self) -> bool:
        """Whether no run diverged."""
        return math.isfinite(self.mean)


def finished(report: dict[str, Any]) -> dict[str, Row]:
    """Return the finished runs of each change, in the order of `CHANGES`."""
    runs = {name: [run for run in report["runs"] if run["name"] == name] for name in CHANGES}
    return {name: Row(found) for name, found in runs.items() if found}


def table(rows: dict[str, Row]) -> str:
    """Return the losses as a table in Markdown."""
    lines = ["| change | updates | loss | difference | BLEU | seeds |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        difference = "" if name == BASELINE else f"{row.mean - rows[BASELINE].mean:+.3f}".replace("-", "−")
        loss = f"{row.mean:.3f} ± {row.deviation:.3f}" if len(row.runs) > 1 else f"{row.mean:.3f}"
        updates = f"{row.runs[0]['steps']:,}"
        lines.append(f"| {name} | {updates} | {loss} | {difference} | {row.bleu:.2f} | {len(row.runs)} |")
    return "\n".join(lines)


def plot(rows: dict[str, Row], minutes: float, path: Path) -> None:
    """Draw the difference that each change makes, the best one at the top, and the BLEU over the minutes of all runs.

    The recipe, the two best changes and the worst one have colors. Changes with a run that diverged are only in the
    table.
    """
    from matplotlib.figure import Figure

    rows = {name: row for name, row in rows.items() if row.finite}
    changes = sorted((name for name in rows if name != BASELINE), key=lambda name: -rows[name].mean)
    figure = Figure(figsize=(12, 1.5 + 0.3 * len(changes)), layout="constrained")
    bars, curves = figure.subplots(1, 2)
    for height, name in enumerate(changes):
        change = rows[name].mean - rows[BASELINE].mean
        color = "tab:green" if change < 0 else "tab:orange"
        bars.barh(height, change, xerr=rows[name].deviation or None, color=color, capsize=3)
    bars.set_yticks(range(len(changes)), changes)
    bars.axvline(0, color="black", linewidth=0.8)
    bars.set_xlabel(f"change of the validation loss from {rows[BASELINE].mean:.3f}; lower is better")
    named = dict.fromkeys([BASELINE, *changes[:-3:-1], *changes[:1]])
    colors = dict(zip(named, ("tab:blue", "tab:green", "tab:olive", "tab:orange"), strict=False))
    for name, row in rows.items():
        points = list(zip(*(run["curve"] for run in row.runs), strict=False))
        times = [minutes * point[0][0] / row.runs[0]["steps"] for point in points]
        bleu = [statistics.mean(run[2] for run in point) for point in points]
        color = colors.get(name)
        curves.plot(times, bleu, color=color or "silver", zorder=3 if color else 2, label=name if color else None)
    curves.legend(fontsize=8, frameon=False, loc="lower right")
    curves.set_xlabel("minutes")
    curves.set_ylabel("validation BLEU, greedy")
    figure.savefig(path, dpi=80)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
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
    compare(args.only, args.report, args.updates, args.timed, args.seeds, args.keys)
    report = read_report(args.report)
    rows = finished(report)
    if BASELINE in rows:
        print(table(rows))
        minutes = rows[BASELINE].runs[0]["steps"] * milliseconds(report)[BASELINE] / 60_000
        plot(rows, minutes, args.report.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
