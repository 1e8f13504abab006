"""Read and check recipes."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from clearhead.choices import suggest
from clearhead.io.json import json_error
from clearhead.io.reading import open_file
from clearhead.train.recipe.conflicts import section_conflicts
from clearhead.train.recipe.errors import format_error
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.renamed import check_renamed
from clearhead.train.regularizers import regularizer_conflicts
from clearhead.train.tasks.base import TaskEntry
from clearhead.train.tasks.registry import TASKS

_MAX_MESSAGE = 500
"""Maximum number of characters of the message of the YAML parser, which repeats a part of the file."""
_MAX_SHOWN = 80
"""Characters of an override that an error message repeats."""
_MAX_VALUES = 100_000
"""Maximum number of values of a recipe, with those that its aliases repeat."""


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a YAML file.

    Args:
        path: the file.
        overrides: "key=value" with dots between sections and keys, such as "training.steps=100"; values are YAML.

    Raises:
        ValueError: a missing file, invalid YAML, a repeated key, an unknown or renamed key (with the right one), a
            wrong type, or incompatible keys.
    """
    path = Path(path)
    try:
        with open_file(path) as file:
            text = file.read().decode()
    except FileNotFoundError:
        raise ValueError(f"recipe not found: {path}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    data = _parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not a recipe: expected sections with keys and values")
    for override in overrides:
        _override(data, override)
    return parse_recipe(data, str(path))


def parse_recipe(data: Mapping[str, Any], where: str) -> Recipe:
    """Return the recipe in a mapping, checked as in `read_recipe`.

    Args:
        data: sections and keys.
        where: name of the source in messages.
    """
    try:
        check_renamed(data)
        return _check(_validate(data))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _validate(data: Mapping[str, Any]) -> Recipe:
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise ValueError(format_error(error, Recipe, ())) from None
    if recipe.task not in TASKS:
        raise ValueError(f"task is {recipe.task!r}{suggest(recipe.task, list(TASKS))}")
    changes = {"objective": _objective(TASKS[recipe.task], recipe.objective)}
    if recipe.model.init_from is not None:
        changes["optimizer"] = recipe.optimizer.for_fine_tuning()
    return recipe.model_copy(update=changes)


def _objective(task: TaskEntry, value: object) -> object:
    if isinstance(value, task.objective):
        return value
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"objective is {value!r}: expected a mapping")
    for key in value or ():
        if not isinstance(key, str):
            raise ValueError(f"objective has the key {key!r:.80}; expected a name")
    try:
        return task.objective(**(value or {}))
    except ValidationError as error:
        raise ValueError(format_error(error, task.objective, ("objective",))) from None


def _check(recipe: Recipe) -> Recipe:
    task = TASKS[recipe.task]
    of_regularizers = regularizer_conflicts(recipe, task)
    for key, reason in chain(section_conflicts(recipe), task.conflicts(recipe), of_regularizers):
        raise ValueError(f"{key}: {reason}")
    return recipe


def flatten(recipe: Recipe) -> dict[str, Any]:
    """Return every key of a recipe, with dots between sections, and its value."""
    return dict(_flatten(recipe.model_dump(mode="json"), ""))


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Describe each difference between two flattened recipes in one line."""
    return [
        f"{key}: {old.get(key)!r} became {new.get(key)!r}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _flatten(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Loader that checks a document before it builds the values."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_nodes(node)
        return node


def _check_nodes(root: yaml.Node) -> None:
    """Check that keys are not repeated, numbers are decimal, and aliases neither contain themselves nor multiply.

    Raises:
        ValueError: a rule is broken. A few lines of nested aliases can expand to billions of values.
    """
    pending, count = [root], 0
    while pending:
        node = pending.pop()
        count += 1
        if count > _MAX_VALUES:
            raise ValueError(f"its aliases expand to more than {_MAX_VALUES:,} values; write the values themselves")
        if isinstance(node, yaml.MappingNode):
            keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            names = Counter(key.value for key in keys)
            for key in keys:
                if names[key.value] > 1:
                    raise ValueError(f"line {key.start_mark.line + 1} has the key {key.value!r:.80}, which is repeated")
            pending += chain.from_iterable(node.value)
        elif isinstance(node, yaml.ScalarNode) and _is_misread(node):
            line = node.start_mark.line + 1
            raise ValueError(f"line {line} has the number {node.value:.80}; write it in decimal notation")
        elif isinstance(node, yaml.SequenceNode):
            pending += node.value


def _is_misread(node: yaml.ScalarNode) -> bool:
    """Return whether YAML 1.1 reads a number in another notation: 012 is 10, 0x10 is 16 and 1:30 is 90."""
    return bool(node.tag.endswith((":int", ":float")) and re.match(r"[-+]?0[0-9_xb]|.*:", node.value))


def _parse_yaml(text: str, name: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ValueError: invalid YAML, a key that a mapping repeats, aliases that contain themselves or expand to too
            many values, or too deep nesting; the message starts with `name`.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply; a recipe has sections, keys and values") from None
    except (AttributeError, IndexError, KeyError, TypeError):  # PyYAML's constructors of numbers, dates and booleans
        raise ValueError(f"{name} is not YAML: the value after a tag such as !!int is not of this type") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that Python cannot represent
        message = " ".join(json_error(error, text).split())  # without the lines around the position
        raise ValueError(f"{name} is not YAML: {message:.{_MAX_MESSAGE}}") from None


def _override(data: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise ValueError(f"{override!r} is not an override: expected key=value, such as training.steps=100")
    # * starts a YAML alias, which an override cannot have, but also a pattern of files
    value = text if text.startswith("*") else _parse_yaml(text, f"{override[:_MAX_SHOWN]!r}: the value")
    *sections, last = key.split(".")
    for section in sections:
        inner = data.get(section)
        if inner is None:
            inner = data[section] = {}
        if not isinstance(inner, dict):
            raise ValueError(
                f"{override!r}: {section} is {inner!r} in the recipe, not a section. Set all keys of the section at "
                f"once: {section}={{key: value, ...}}"
            )
        data = inner
    data[last] = value
