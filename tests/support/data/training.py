"""Tiny trainings: a few dozen artificial sentence pairs, and a recipe that trains on them in a second."""

import csv
import random
import signal
from pathlib import Path

import yaml
from safetensors.torch import load_file

from clearhead.train.recipe.load import parse_recipe
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.trainer import train

WORDS = [
    "tree",
    "house",
    "river",
    "green",
    "old",
    "man",
    "runs",
    "sees",
    "bird",
    "sky",
    "dog",
    "sleeps",
    "under",
    "the",
    "a",
]


def write_pairs(path, count, seed=0):
    """Write sentences of random words, each with its words reversed and in capitals."""
    draws = random.Random(seed)
    lines = ["source\ttarget"]
    for _ in range(count):
        words = draws.choices(WORDS, k=draws.randint(2, 9))
        lines.append(" ".join(words) + "\t" + " ".join(reversed(words)).upper())
    path.write_text("\n".join(lines) + "\n")


def write_data(folder):
    """Write the training and validation pairs, unless they exist."""
    for name, count in (("train", 48), ("valid", 8)):
        if not (folder / f"{name}.tsv").exists():
            write_pairs(folder / f"{name}.tsv", count, seed=count)


def spec(folder, output="run"):
    """Return a recipe with everything that has a state: dropout, augmentation, accumulation, early stopping, averaging."""
    folder = Path(folder)
    write_data(folder)
    return {
        "task": "text-to-text",
        "output": str(folder / output),
        "data": {
            "train": str(folder / "train.tsv"),
            "validation": str(folder / "valid.tsv"),
            "columns": {"source": "source", "target": "target"},
            "batch_tokens": 200,
        },
        "tokenizer": {"vocab_size": 340},
        "model": {"d_model": 16, "ffn_hidden": 32, "num_heads": 2, "num_layers": 1, "decoder_num_layers": 1},
        "regularize": {
            "dropout": 0.1,
            "label_smoothing": 0.1,
            "augmentation": {"token_masking": 0.1, "local_shuffle": 2},
            "early_stopping": {"patience": 50},
        },
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 4},
        "training": {
            "steps": 12,
            "gradient_accumulation_steps": 2,
            "precision": "float32",
            "device": "cpu",
            "keep_last": 3,
            "final_weights": "average",
            "log_every": 1,
        },
        "validation": {"every": 3},
    }


def changed(data, changes):
    """Change values of a recipe: {"training.steps": 5}."""
    for key, value in changes.items():
        *sections, last = key.split(".")
        inner = data
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return data


def tiny(folder, output="run", **changes) -> Recipe:
    """Return the tiny recipe with changes: training__steps=5."""
    return parse_recipe(
        changed(spec(folder, output), {key.replace("__", "."): value for key, value in changes.items()}), "tiny"
    )


def write_tiny(folder, output="run", **changes):
    """Write the tiny recipe into a file; return its path."""
    data = changed(spec(folder, output), {key.replace("__", "."): value for key, value in changes.items()})
    path = Path(folder) / f"{output}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


class Killed(BaseException):
    """Replaces SIGKILL in tests that kill a run in their own process."""


def trained_until(recipe, moment, *, resume=False):
    """Train until `moment(step)` is true after a step, and abort without warning."""

    def advance(step, steps, message):
        if moment(step):
            raise Killed

    try:
        train(recipe, resume=resume, on_step=advance)
    except Killed:
        return
    raise AssertionError("the run ended before the moment")


def metrics(run):
    """Return the rows of a metrics.csv as strings, without the speed."""
    with (Path(run) / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        del row["tokens_per_second"]
    return rows


def outcome(run):
    """Return the parts of a run that must not depend on interruptions: files of weights as bytes, and the metrics."""
    run = Path(run)
    files = [run / "model.safetensors", *sorted((run / "checkpoints").glob("step-*"))]
    outcome = {path.name: path.read_bytes() for path in files}
    assert list(run.rglob(".*.part")) == []
    return outcome | {"metrics.csv": metrics(run), "training.json": (run / "training.json").read_text()}


def same(one, other):
    """Check that two outcomes are equal; the assertion names the files that differ."""
    assert list(one) == list(other)
    assert [name for name in one if one[name] != other[name]] == []


def weights(run):
    """Return the tensors of a run's model."""
    return load_file(Path(run) / "model.safetensors")


def losses(run):
    """Return the loss of each step."""
    return [float(row["loss"]) for row in metrics(run) if row["loss"]]


KILLED = -signal.SIGKILL
