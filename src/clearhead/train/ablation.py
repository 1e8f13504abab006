"""What each regulariser is worth: the same training with and without it."""

import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clearhead.io.atomic import atomic_file
from clearhead.io.json import read_json, write_json
from clearhead.io.locks import LOCK_NAME
from clearhead.train.callback import Advance
from clearhead.train.checkpointing import STATE
from clearhead.train.distillation import distill
from clearhead.train.lightning_module import DivergedError
from clearhead.train.recipe.errors import did_you_mean
from clearhead.train.recipe.load import differences, flat, recipe_of
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.tasks.base import HIGHER_IS_BETTER
from clearhead.train.trainer import run_lock, train

log = logging.getLogger(__name__)

Changes = Mapping[str, Any]
SWITCHES: dict[str, tuple[Changes, Changes]] = {
    "dropout": ({"dropout": False}, {"dropout": 0.1}),
    "attention_masking": ({"attention_masking": False}, {"attention_masking": True}),
    "weight_decay": ({"weight_decay": 0.0}, {"weight_decay": 0.01}),
    "layer_norm": ({"layer_norm": False}, {"layer_norm": True}),
    "label_smoothing": ({"label_smoothing": 0.0}, {"label_smoothing": 0.1}),
    "early_stopping": ({"early_stopping": None}, {"early_stopping": {"patience": 3}}),
    "augmentation": ({"augmentation": None}, {"augmentation": {"token_masking": 0.1}}),
    "gradient_clipping": ({"gradient_clipping": None}, {"gradient_clipping": 1.0}),
    "distillation": ({"distillation": None}, {}),
    "residual_path": (
        {"dropout.residual": 0.0, "layer_drop": 0.0},
        {"dropout.residual": 0.1, "layer_drop": 0.1},
    ),
    "r_drop": ({"r_drop": 0.0}, {"r_drop": 2.5}),
    "l2_penalty": ({"l2_penalty": 0.0}, {"l2_penalty": 1e-4}),
}
"""For each regulariser the keys under `regularize` that switch it off, and those that switch it on."""


@dataclass(frozen=True)
class AblationResult:
    """What became of one change.

    Args:
        name: such as "without dropout"; "as the recipe says" for the recipe itself.
        runs: for each seed the scores on held-out data; {} where the run diverged.
        mean: of each score over the seeds.
        spread: its standard deviation over the seeds; 0 with one seed.
        difference: from the recipe's own score with the same seed, the mean over the seeds.
        difference_spread: its standard deviation over the seeds: of the effect itself, without what a seed does to all.
        diverged: how many of the runs did.
    """

    name: str
    runs: list[dict[str, float]]
    mean: dict[str, float]
    spread: dict[str, float]
    difference: dict[str, float]
    difference_spread: dict[str, float]
    diverged: int


BASE = "as the recipe says"


def ablate(
    recipe: Recipe,
    *,
    without: Sequence[str] = (),
    with_: Sequence[str] = (),
    seeds: int = 1,
    resume: bool = False,
    advance: Advance = lambda step, steps, told: None,
) -> list[AblationResult]:
    """Trains as the recipe says, then with each change, and compares.

    Args:
        recipe: with held-out data.
        without: regularisers to switch off, one at a time.
        with_: regularisers to switch on, one at a time.
        seeds: runs of each, with seeds that follow the recipe's.
        resume: go on with what is in the recipe's output folder.
        advance: as in `train`.

    Writes ablation.json and ablation.png into the recipe's output folder, and each run into a folder below it.

    Raises:
        ValueError: a regulariser that there is not, or that is already as asked; a recipe without held-out data.
    """
    if recipe.data.validation is None:
        raise ValueError("an ablation compares on held-out data: data.validation is missing")
    variants = {BASE: recipe}
    for name in without:
        variants[f"without {name}"] = toggled(recipe, name, on=False)
    for name in with_:
        variants[f"with {name}"] = toggled(recipe, name, on=True)
    if len(variants) == 1:
        raise ValueError(f"nothing to compare: --without or --with names regularisers: {', '.join(SWITCHES)}")
    with run_lock(recipe):
        return _ablate(recipe, variants, seeds, resume, advance)


def _ablate(
    recipe: Recipe, variants: Mapping[str, Recipe], seeds: int, resume: bool, advance: Advance
) -> list[AblationResult]:
    folder = Path(recipe.output)
    if not resume and folder.exists() and any(path.name != LOCK_NAME for path in folder.iterdir()):
        raise ValueError(f"{folder} holds an ablation already; --resume continues it, another output starts a new one")
    found: dict[str, list[dict[str, float]]] = {}
    for name, variant in variants.items():
        found[name] = [_run(variant, folder, name, recipe.seed + number, advance) for number in range(seeds)]
    effects = [_effect(name, runs, found[BASE]) for name, runs in found.items()]
    write_json(folder / "ablation.json", [asdict(effect) for effect in effects])
    if len(effects) > 1:
        _draw(folder / "ablation.png", effects, recipe.validation.select)
    return effects


def toggled(recipe: Recipe, name: str, *, on: bool) -> Recipe:
    """A recipe with one regulariser switched on or off.

    Raises:
        ValueError: there is no such regulariser, or it is on or off already.
    """
    if name not in SWITCHES:
        raise ValueError(f"there is no regulariser {name!r}{did_you_mean(name, list(SWITCHES))}")
    changes = SWITCHES[name][on]
    if name == "distillation" and on:
        raise ValueError("distillation needs a teacher: say it in the recipe, and compare --without distillation")
    data = recipe.model_dump(mode="json")
    before = data["regularize"]
    after = {**before, "dropout": dict(before["dropout"])}
    for key, value in changes.items():
        *inner, last = key.split(".")
        (after[inner[0]] if inner else after)[last] = value
    changed = recipe_of({**data, "regularize": after}, f"{'with' if on else 'without'} {name}")
    if changed == recipe:
        raise ValueError(f"{name} is {'on' if on else 'off'} in the recipe already")
    if on and before[name if name in before else "layer_drop"] not in (None, 0.0, False) and name != "dropout":
        raise ValueError(f"{name} is on in the recipe already; compare --without {name}")
    return changed


def _run(recipe: Recipe, folder: Path, name: str, seed: int, advance: Advance) -> dict[str, float]:
    """The scores of one run; {} where it diverged."""
    place = folder / name.replace(" ", "-") / f"seed-{seed}"
    result = place / "result.json"
    said = {key: value for key, value in flat(recipe).items() if key not in ("output", "seed")}
    if result.is_file():
        held = read_json(result)
        if different := differences(held["recipe"], said):
            raise ValueError(
                f"{place} holds a run of another recipe: {'; '.join(different)}; another output begins anew"
            )
        scores: dict[str, float] = held["scores"]
        return scores
    tokens = folder / BASE.replace(" ", "-") / f"seed-{recipe.seed}" / "data" / "tokenizer"
    changes: dict[str, Any] = {"output": str(place), "seed": seed}
    if tokens.is_dir() and place not in tokens.parents and recipe.model.start is None:
        changes["tokenizer"] = recipe.tokenizer.model_copy(update={"path": str(tokens)})
    told = recipe.model_copy(update=changes)
    log.info("%s, seed %d", name, seed)
    try:
        run = train if told.regularize.distillation is None else distill
        trained = run(told, resume=(place / STATE).is_file(), advance=advance)
        if not trained.finished:
            raise KeyboardInterrupt
        scores = trained.scores
    except DivergedError as error:
        log.warning("%s, seed %d: %s", name, seed, error)
        scores = {}
    place.mkdir(parents=True, exist_ok=True)
    write_json(result, {"name": name, "seed": seed, "scores": scores, "recipe": said})
    return scores


def _effect(name: str, runs: list[dict[str, float]], base: list[dict[str, float]]) -> AblationResult:
    whole = [run for run in runs if run]
    moved = [
        {key: run[key] - other[key] for key in run} for run, other in zip(runs, base, strict=True) if run and other
    ]
    return AblationResult(
        name=name,
        runs=runs,
        mean=_means(whole),
        spread=_spreads(whole),
        difference=_means(moved),
        difference_spread=_spreads(moved),
        diverged=len(runs) - len(whole),
    )


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: math.fsum(run[key] for run in runs) / len(runs) for key in (runs[0] if runs else {})}


def _spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Standard deviations over the seeds; 0 with one."""
    keys = runs[0] if runs else {}
    return {key: statistics.stdev(run[key] for run in runs) if len(runs) > 1 else 0.0 for key in keys}


def _draw(path: Path, effects: Sequence[AblationResult], select: str) -> None:
    """A panel for each score: how far each change moves it, with the spread of that over the seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    base, *changes = effects
    names = [select, *(name for name in base.mean if name != select)]
    figure = Figure(figsize=(2 + 3.6 * len(names), 1.7 + 0.42 * len(changes)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    places = list(range(len(changes)))[::-1]
    for panel, score in zip(panels, names, strict=True):
        higher = HIGHER_IS_BETTER.get(score, True)
        for place, effect in zip(places, changes, strict=True):
            if score in effect.difference:
                change = effect.difference[score]
                color = "tab:green" if (change > 0) == higher else "tab:orange"
                panel.barh(place, change, xerr=effect.difference_spread[score], color=color, capsize=3)
            else:
                middle = {"x": 0.5, "transform": panel.get_yaxis_transform(), "ha": "center", "va": "center"}
                said = "the recipe itself diverged" if effect.mean else "diverged"
                panel.text(y=place, s=said, color="tab:red", **middle)
        panel.axvline(0, color="black", linewidth=0.8)
        panel.set_yticks(places, [effect.name for effect in changes])
        panel.set_title(f"{score.replace('_', ' ')}: {'more' if higher else 'less'} is better", fontsize="medium")
        panel.set_xlabel(f"change from {base.mean.get(score, math.nan):.3f}")
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    if len(base.runs) > 1:
        figure.supxlabel(
            f"{len(base.runs)} seeds; lines: a standard deviation of the change over them", fontsize="small"
        )
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)
