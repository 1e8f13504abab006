"""Hostile recipes, which are read and trained until the first step."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

from fuzz import mutations
from fuzz.outcomes import Case, Target

MEMORY_MB = 3000
"""Growth of the peak memory: a recipe without sizes trains a model of the default size."""


class FirstStepError(BaseException):
    """The first step is done."""


def prepare(folder: Path) -> None:
    """Write the data, a recipe for each task, one with a tokenizer to train, and two that learn from a teacher."""
    import yaml
    from support.data.training_data import FILES, SIZES, write_data

    write_data(folder)
    for task, files in FILES.items():
        train = (
            {name: str(folder / file) for name, file in files.items()}
            if isinstance(files, dict)
            else str(folder / files)
        )
        recipe = {
            "task": task,
            "output": "unfinished",
            "seed": 1,
            "data": {"train": train, "validation": train, "batch_tokens": 400},
            "tokenizer": {"path": str(folder / ("seq2seq" if task == "text-to-text" else "encoder"))},
            "model": dict(SIZES),
            "regularize": {"dropout": 0.1, "gradient_clipping": 1.0, "weight_decay": 0.01, "label_smoothing": False},
            "optimizer": {"learning_rate": 0.003, "schedule": "constant", "warmup_steps": 2},
            "training": {"steps": 3, "precision": "float32", "device": "cpu", "log_every": 1, "keep_last": 1},
            "validation": {"every": 2},
        }
        if task == "sentence-embeddings":
            recipe["objective"] = {"loss": "regression"}
        (folder / f"{task}.yaml").write_text(yaml.safe_dump(recipe))
    whole = yaml.safe_load((folder / "text-to-text.yaml").read_text())
    (folder / "tokenizer.yaml").write_text(yaml.safe_dump(whole | {"tokenizer": {"vocab_size": 340}}))
    _prepare_distillation(folder)


def _prepare_distillation(folder: Path) -> None:
    import yaml

    from clearhead.train.recipe.load import parse_recipe
    from clearhead.train.trainer import train

    recipe = yaml.safe_load((folder / "text-to-text.yaml").read_text())
    teacher = str(folder / "teacher")
    train(parse_recipe(recipe | {"output": teacher, "training": recipe["training"] | {"steps": 1}}, "teacher"))
    by_probabilities = {"teacher": [teacher, teacher], "weight": 0.5, "temperature": 2.0}
    by_texts = {"teacher": teacher, "sequence_level": True, "beam_size": 1}
    for name, settings in {"distillation": by_probabilities, "teacher-texts": by_texts}.items():
        changed = recipe | {"regularize": recipe["regularize"] | {"distillation": settings}}
        changed["data"] = recipe["data"] | {"max_target_length": 12}  # of the teacher's texts
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(changed))


def make(originals: Path, random: Random, workspace: Path) -> Case:
    """Return a case: a recipe with one or two changes."""
    import yaml

    task = random.choice(sorted(path.stem for path in originals.glob("*.yaml")))
    path = workspace / "recipe.yaml"
    text = (originals / f"{task}.yaml").read_text()
    if random.random() < 0.15:
        data, what = mutations.change_bytes(text.encode(), random)
        path.write_bytes(data)
    elif random.random() < 0.15:
        pieces = [
            "*a",
            "&a",
            "&a [*a]",
            "&a {b: *a}",
            "seed: 2\n",
            "!!int ",
            "!!bool ",
            "!!timestamp ",
            "!!python/name:os.system",
            "!!float",
            "? ",
            "{",
            "[",
            "- ",
            ": ",
            "<<: ",
            "\t",
            "|",
            "1e3",
            "~",
            "---\n",
            "2020-01-01",
        ]
        start, piece = random.randrange(len(text)), random.choice(pieces)
        path.write_text(text[:start] + piece + text[start:])
        what = f"{piece!r} inserted at character {start}"
    else:
        recipe = yaml.safe_load(text)
        whats = []
        for _ in range(random.choice([1, 1, 2])):
            recipe, one = mutations.change_value(recipe, random) if random.random() < 0.6 else _set_key(recipe, random)
            whats.append(one)
        what = "; ".join(whats)
        try:
            text = yaml.safe_dump(recipe, allow_unicode=random.random() < 0.5)
        except RecursionError:  # of two changes that nest deeply; JSON is YAML
            text = mutations.json_text(recipe, random).decode("utf-8", "surrogatepass")
        path.write_text(text, errors="surrogatepass")
    return Case(f"{task}: {what}", lambda: _train(path), [str(path), *_named(path)], MEMORY_MB)


def _named(path: Path) -> Iterator[str]:
    """Yield the recipe and the files in it, one of which an error names."""
    import yaml

    yield path.name
    with contextlib.suppress(Exception):  # of YAML that is none
        data = yaml.safe_load(path.read_bytes())
        for place in mutations.paths(data):
            value = mutations.get(data, place)
            if isinstance(value, str) and place[0] in ("data", "tokenizer", "output", "regularize"):
                short = [f"{value or '.'} {what}" for what in ("is a folder", "has no", "was not")]
                yield from (value[:60], repr(value)) if len(value) > 2 else (repr(value), f"file: {value}", *short)


def _set_key(recipe: object, random: Random) -> tuple[object, str]:
    """Set one of all keys of recipes, also those that the recipe lacks."""
    from clearhead.train.recipe.recipe import Recipe

    if not isinstance(recipe, dict):
        return recipe, "nothing"
    section = random.choice([*Recipe.model_fields])
    fields = getattr(Recipe.model_fields[section].annotation, "model_fields", None)
    value = random.choice(mutations.VALUES)
    if not fields or not isinstance(recipe.get(section, {}), dict):
        return recipe | {section: value}, f"{section} = {repr(value)[:80]}"
    key = random.choice([*fields])
    return recipe | {section: {**recipe.get(section, {}), key: value}}, f"{section}.{key} = {repr(value)[:80]}"


def _train(path: Path) -> None:
    import os

    from clearhead.cli.training.train import recipe_error_context
    from clearhead.train.distillation import distill
    from clearhead.train.recipe.load import read_recipe
    from clearhead.train.trainer import train

    def stop(*_: object) -> None:
        raise FirstStepError

    before = Path.cwd()
    os.chdir(path.parent)  # relative outputs are in the workspace
    try:
        with recipe_error_context(str(path)):
            recipe = read_recipe(path)
            (distill if recipe.regularize.distillation else train)(recipe, on_step=stop)
    except FirstStepError:
        pass
    finally:
        os.chdir(before)


TARGET = Target(prepare, make)
