"""Measure the effect of each regularizer: the same training with and without it."""

import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clearhead.choices import suggest
from clearhead.data.lines import content_hash
from clearhead.data.records import matching_files
from clearhead.io.atomic import atomic_file, remove_leftovers
from clearhead.io.json import read_hashed_json, write_hashed_json, write_json
from clearhead.io.locks import LOCK_NAME
from clearhead.train.distillation import distill
from clearhead.train.loop.callback import OnStep
from clearhead.train.loop.checkpointing import STATE
from clearhead.train.loop.lightning_module import DivergedError
from clearhead.train.recipe.load import describe_differences, flatten, parse_recipe
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import Files
from clearhead.train.regularizers import ablations
from clearhead.train.regularizers.early_stopping import LOWER_IS_BETTER
from clearhead.train.trainer import ignore_step, run_lock, train

log = logging.getLogger(__name__)

BASELINE = "as the recipe says"


@dataclass(frozen=True)
class AblationResult:
    """Effect of one change of the recipe.

    Args:
        name: the change, such as "without dropout"; "as the recipe says" for the unchanged recipe.
        runs: for each seed the metrics on held-out data; {} if the run diverged.
        mean: mean of each metric over the seeds.
        spread: standard deviation over the seeds; 0 with one seed.
        difference: mean over the seeds of the difference from the unchanged recipe with the same seed.
        difference_spread: standard deviation of that difference. It excludes the effect that a seed has on all runs.
        diverged: number of runs that diverged.
    """

    name: str
    runs: list[dict[str, float]]
    mean: dict[str, float]
    spread: dict[str, float]
    difference: dict[str, float]
    difference_spread: dict[str, float]
    diverged: int


def ablate(
    recipe: Recipe,
    *,
    without: Sequence[str] = (),
    with_: Sequence[str] = (),
    seeds: int = 1,
    resume: bool = False,
    on_step: OnStep = ignore_step,
) -> list[AblationResult]:
    """Train with the unchanged recipe, then with each change, and compare the results.

    Args:
        recipe: a recipe with held-out data.
        without: regularizers to switch off, one at a time.
        with_: regularizers to switch on, one at a time.
        seeds: runs per change, with consecutive seeds from the recipe's on.
        resume: continue the ablation in the recipe's output folder.
        on_step: as in `train`.

    Writes ablation.json and ablation.png into the recipe's output folder, and each run into a folder below it.

    Raises:
        ValueError: an unknown regularizer, one that is already off or on, or a recipe without held-out data.
    """
    if recipe.data.validation is None:
        raise ValueError("an ablation requires held-out data: data.validation is missing")
    variants = {BASELINE: recipe}
    for name in without:
        variants[f"without {name}"] = toggled(recipe, name, on=False)
    for name in with_:
        variants[f"with {name}"] = toggled(recipe, name, on=True)
    if len(variants) == 1:
        raise ValueError(f"nothing to compare: choose regularizers with --without or --with: {', '.join(ablations())}")
    with run_lock(recipe):
        return _run_all(recipe, variants, seeds, resume, on_step)


def _run_all(
    recipe: Recipe, variants: Mapping[str, Recipe], seeds: int, resume: bool, on_step: OnStep
) -> list[AblationResult]:
    folder = Path(recipe.output)
    if not resume and folder.exists() and any(path.name != LOCK_NAME for path in folder.iterdir()):
        raise ValueError(
            f"{folder} already contains an ablation; use --resume to continue it, or choose another output"
        )
    scores = {
        name: [_run(variant, folder, name, recipe.seed + offset, on_step) for offset in range(seeds)]
        for name, variant in variants.items()
    }
    results = [_summarize(name, runs, scores[BASELINE]) for name, runs in scores.items()]
    table, plot = folder / "ablation.json", folder / "ablation.png"
    for written in (table, plot):
        remove_leftovers(written)
    write_json(table, [asdict(result) for result in results])
    if len(results) > 1:
        _plot(plot, results, recipe.validation.monitor)
    return results


def toggled(recipe: Recipe, name: str, *, on: bool) -> Recipe:
    """Return a recipe with one regularizer switched on or off.

    Raises:
        ValueError: an unknown regularizer, or one that is on or off already.
    """
    known = ablations()
    if name not in known:
        raise ValueError(f"unknown regularizer {name!r}{suggest(name, list(known))}")
    ablation = known[name].ablation
    assert ablation is not None
    changes = ablation.on if on else ablation.off
    if not changes:
        raise ValueError(f"{name} needs settings: configure it in the recipe, and compare --without {name}")
    data = recipe.model_dump(mode="json")
    before = data["regularize"]
    after = {**before, "dropout": dict(before["dropout"])}
    for key, value in changes.items():
        *sections, last = key.split(".")
        (after[sections[0]] if sections else after)[last] = value
    changed = parse_recipe({**data, "regularize": after}, f"{'with' if on else 'without'} {name}")
    if changed == recipe:
        raise ValueError(f"{name} is already {'on' if on else 'off'} in the recipe")
    if on and name != "dropout" and before[known[name].name] not in (None, 0.0, False):
        raise ValueError(f"{name} is already on in the recipe; compare --without {name}")
    return changed


def _run(recipe: Recipe, folder: Path, name: str, seed: int, on_step: OnStep) -> dict[str, float]:
    """Return the metrics of one run, trained now or in an earlier ablation; {} if it diverged."""
    output = folder / name.replace(" ", "-") / f"seed-{seed}"
    result_file = output / "result.json"
    key = {key: value for key, value in flatten(recipe).items() if key not in ("output", "seed")}
    hashes = [*_hashes(recipe.data.train), *_hashes(recipe.data.validation)]
    remove_leftovers(result_file)
    if result_file.is_file():
        saved = read_hashed_json(result_file)
        if saved["data"] != hashes:
            raise ValueError(f"{output} contains a run on other data, which has changed since; choose another output")
        if differences := describe_differences(saved["recipe"], key):
            raise ValueError(
                f"{output} contains a run of another recipe: {'; '.join(differences)}; choose another output"
            )
        saved_scores: dict[str, float] = saved["scores"]
        return saved_scores
    scores = _train(_variant(recipe, folder, output, seed), output, name, on_step)
    output.mkdir(parents=True, exist_ok=True)
    write_hashed_json(result_file, {"name": name, "seed": seed, "scores": scores, "recipe": key, "data": hashes})
    return scores


def _hashes(files: Files | None) -> list[str | None]:
    if files is None or isinstance(files, str):
        return [] if files is None else [content_hash(path) for path in matching_files(files)]
    return [digest for part in (files.values() if isinstance(files, dict) else files) for digest in _hashes(part)]


def _variant(recipe: Recipe, folder: Path, output: Path, seed: int) -> Recipe:
    """Return the recipe of one run, which uses the first run's tokenizer."""
    tokenizer = folder / BASELINE.replace(" ", "-") / f"seed-{recipe.seed}" / "data" / "tokenizer"
    changes: dict[str, Any] = {"output": str(output), "seed": seed}
    if tokenizer.is_dir() and output not in tokenizer.parents and recipe.model.init_from is None:
        changes["tokenizer"] = recipe.tokenizer.model_copy(update={"path": str(tokenizer)})
    return recipe.model_copy(update=changes)


def _train(recipe: Recipe, output: Path, name: str, on_step: OnStep) -> dict[str, float]:
    log.info("%s, seed %d", name, recipe.seed)
    run = train if recipe.regularize.distillation is None else distill
    try:
        result = run(recipe, resume=(output / STATE).is_file(), on_step=on_step)
    except DivergedError as error:
        log.warning("%s, seed %d: %s", name, recipe.seed, error)
        return {}
    if not result.finished:
        raise KeyboardInterrupt
    return result.scores


def _summarize(name: str, runs: list[dict[str, float]], baseline: list[dict[str, float]]) -> AblationResult:
    complete = [run for run in runs if run]
    differences = [
        {key: run[key] - other[key] for key in run} for run, other in zip(runs, baseline, strict=True) if run and other
    ]
    return AblationResult(
        name=name,
        runs=runs,
        mean=_means(complete),
        spread=_deviations(complete),
        difference=_means(differences),
        difference_spread=_deviations(differences),
        diverged=len(runs) - len(complete),
    )


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: math.fsum(run[key] for run in runs) / len(runs) for key in (runs[0] if runs else {})}


def _deviations(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return standard deviations over the seeds; 0 with one seed."""
    keys = runs[0] if runs else {}
    return {key: statistics.stdev(run[key] for run in runs) if len(runs) > 1 else 0.0 for key in keys}


def _plot(path: Path, results: Sequence[AblationResult], monitor: str) -> None:
    """Plot the difference of each change, one panel per metric, with its deviation over the seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    baseline, *changes = results
    metrics = [monitor, *(name for name in baseline.mean if name != monitor)]
    figure = Figure(figsize=(2 + 3.6 * len(metrics), 1.7 + 0.42 * len(changes)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        _plot_panel(panel, metric, baseline, changes)
    if len(baseline.runs) > 1:
        figure.supxlabel(f"{len(baseline.runs)} seeds; lines: standard deviation of the change", fontsize="small")
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)


def _plot_panel(panel: Any, metric: str, baseline: AblationResult, changes: Sequence[AblationResult]) -> None:
    higher_is_better = metric not in LOWER_IS_BETTER
    heights = list(range(len(changes)))[::-1]
    for height, result in zip(heights, changes, strict=True):
        if metric in result.difference:
            change = result.difference[metric]
            color = "tab:green" if (change > 0) == higher_is_better else "tab:orange"
            panel.barh(height, change, xerr=result.difference_spread[metric], color=color, capsize=3)
        else:
            centered = {"x": 0.5, "transform": panel.get_yaxis_transform(), "ha": "center", "va": "center"}
            message = "the unchanged recipe diverged" if result.mean else "diverged"
            panel.text(y=height, s=message, color="tab:red", **centered)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_yticks(heights, [result.name for result in changes])
    panel.set_title(
        f"{metric.replace('_', ' ')}: {'higher' if higher_is_better else 'lower'} is better", fontsize="medium"
    )
    panel.set_xlabel(f"change from {baseline.mean.get(metric, math.nan):.3f}")
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
