"""Recipes from files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from clearhead.io.json import json_error
from clearhead.train.recipe.errors import format_error
from clearhead.train.recipe.recipe import Recipe

_SHOWN = 80
"""Characters of an override that an error message repeats."""


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a YAML file.

    Args:
        path: the file.
        overrides: "key=value" with dots between sections and keys, such as "training.steps=100"; values are YAML.

    Raises:
        ValueError: no such file, no YAML, an unknown key (with the nearest one), a wrong type, keys that do not go
            together.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"no such recipe: {path}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    data = _parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no recipe: keys with values are wanted")
    for override in overrides:
        _override(data, override)
    return recipe_of(data, str(path))


def recipe_of(data: Mapping[str, Any], where: str) -> Recipe:
    """The recipe in a mapping, as `read_recipe`.

    Args:
        data: sections and keys.
        where: what messages call it.
    """
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{where}: {format_error(error, Recipe, ())}") from None


def flat(recipe: Recipe) -> dict[str, Any]:
    """Every key of a recipe, written with dots, and its value."""
    return dict(_flat(recipe.model_dump(mode="json"), ""))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What differs between two flat recipes, a line each."""
    return [
        f"{key}: {one.get(key)!r} became {other.get(key)!r}"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]


def _flat(data: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _parse_yaml(text: str, name: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ValueError: the text is not YAML, or nested too deeply; the message starts with `name`.
    """
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply; a recipe has sections, keys and values") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that Python cannot represent
        raise ValueError(f"{name} is not YAML: {json_error(error, text)}") from None


def _override(data: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise ValueError(f"{override!r}: what changes a recipe is key=value, such as training.steps=100")
    value = _parse_yaml(text, f"{override[:_SHOWN]!r}: the value")
    *sections, last = key.split(".")
    for section in sections:
        inner = data.get(section)
        if inner is None:
            inner = data[section] = {}
        if not isinstance(inner, dict):
            raise ValueError(f"{override!r}: {section} is {inner!r} in the recipe and has no keys of its own")
        data = inner
    data[last] = value
