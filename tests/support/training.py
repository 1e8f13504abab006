"""Tiny trainings: a few dozen artificial pairs of sentences, and a recipe that learns them in a second."""

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
    """Writes sentences of random words, and each with its words backwards and in capitals."""
    draws = random.Random(seed)
    lines = ["source\ttarget"]
    for _ in range(count):
        words = draws.choices(WORDS, k=draws.randint(2, 9))
        lines.append(" ".join(words) + "\t" + " ".join(reversed(words)).upper())
    path.write_text("\n".join(lines) + "\n")


def write_data(folder):
    """Writes the pairs to train with and to validate with, where they are not there yet."""
    for name, count in (("train", 48), ("valid", 8)):
        if not (folder / f"{name}.tsv").exists():
            write_pairs(folder / f"{name}.tsv", count, seed=count)


def told(folder, output="run"):
    """A recipe of everything that has a state: dropout, augmentation, accumulation, early stopping, an average."""
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
    """A recipe with other values: {"training.steps": 5}."""
    for key, value in changes.items():
        *sections, last = key.split(".")
        inner = data
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return data


def tiny(folder, output="run", **changes) -> Recipe:
    """The tiny recipe, with changes: training__steps=5."""
    return parse_recipe(
        changed(told(folder, output), {key.replace("__", "."): value for key, value in changes.items()}), "tiny"
    )


def write_tiny(folder, output="run", **changes):
    """The tiny recipe as a file; gives its path."""
    data = changed(told(folder, output), {key.replace("__", "."): value for key, value in changes.items()})
    path = Path(folder) / f"{output}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


class Killed(BaseException):
    """In place of SIGKILL, where a test kills a run in its own process."""


def trained_until(recipe, moment, *, resume=False):
    """Trains until `moment(step)` is true after a step, and is ended there without any warning."""

    def advance(step, steps, said):
        if moment(step):
            raise Killed

    try:
        train(recipe, resume=resume, on_step=advance)
    except Killed:
        return
    raise AssertionError("the moment never came")


def metrics(run):
    """The rows of a metrics.csv as they are written, without the speed."""
    with (Path(run) / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        del row["tokens_per_second"]
    return rows


def outcome(run):
    """All of a run that must not depend on interruptions: weights by file, as bytes, and the metrics."""
    run = Path(run)
    files = [run / "model.safetensors", *sorted((run / "checkpoints").glob("step-*"))]
    found = {path.name: path.read_bytes() for path in files}
    assert list(run.rglob(".*.part")) == []
    return found | {"metrics.csv": metrics(run), "training.json": (run / "training.json").read_text()}


def same(one, other):
    """Whether two outcomes are alike; says which file differs."""
    assert list(one) == list(other)
    assert [name for name in one if one[name] != other[name]] == []


def weights(run):
    """The tensors of a run's model."""
    return load_file(Path(run) / "model.safetensors")


def losses(run):
    """The loss of each step."""
    return [float(row["loss"]) for row in metrics(run) if row["loss"]]


KILLED = -signal.SIGKILL
