"""Writes docs/recipe.md, every key of a recipe, from the classes that check recipes.

python docs/make_recipe_reference.py
"""

import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from clearhead.train.recipe import recipe

PAGE = Path(__file__).parent / "recipe.md"
HEAD = """# Every key of a recipe

A recipe is a YAML file of sections. `clearhead train recipe.yaml key=value …` changes keys from the command line, with
dots between sections and keys: `training.steps=100`, `regularize.dropout.attention=0.1`, `data.train.source=my.en`. A
key that there is not, a value of another type and keys that do not go together are refused before anything is computed.
How it all fits together: [training](training.md).

`docs/make_recipe_reference.py` writes this page from `src/clearhead/train/recipe/recipe.py`; a test compares them.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *(section(name, kind) for name, kind in sections(recipe.Recipe, ""))]
    for task, kind in recipe.OBJECTIVES.items():
        parts.append(section(f"objective, where the task is {task}", kind))
    return "\n".join(parts)


def sections(kind: type[BaseModel], before: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """A section and those within it, each with its place."""
    yield before or "At the top", kind
    for name, field in kind.model_fields.items():
        for inner in _within(field.annotation):
            yield from sections(inner, f"{before}.{name}".lstrip("."))


def section(name: str, kind: type[BaseModel]) -> str:
    """A section's title, what it is for, and its keys."""
    told, meanings = explained(kind)
    title = name if " " in name else f"`{name}`"
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, field in kind.model_fields.items():
        short = [_SHORT[told.func] for told in field.metadata if isinstance(told, BeforeValidator)]
        value = " or ".join(dict.fromkeys([*values(field.annotation, field.metadata), *short]))
        cells = [f"`{key}`", value, default(field), meanings[key]]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([f"## {title}", "", told, "", *rows, ""])


def explained(kind: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """What a class's docstring says of it, and of each key."""
    told, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\nArgs:\n")
    meanings: dict[str, str] = {}
    keys: list[str] = []
    for line in rest.partition("\n\n")[0].splitlines():
        entry = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if entry:
            keys = entry[1].split(", ")
            meanings |= dict.fromkeys(keys, entry[2])
        else:
            meanings |= {key: f"{meanings[key]} {line.strip()}" for key in keys}
    return " ".join(told.split()), meanings


def values(annotation: Any, metadata: list[Any]) -> Iterator[str]:
    """The values that a key takes, in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [bound for told in inner[1:] for bound in getattr(told, "metadata", [told])]
        yield from values(inner[0], bounds)
    elif origin in (Union, types.UnionType):
        for option in inner:
            if option is not type(None):
                yield from values(option, metadata)
    elif origin is Literal:
        yield ", ".join(f"`{option}`" for option in inner)
    elif origin is list:
        yield f"a list of {' or '.join(values(inner[0], []))}"
    elif origin is tuple:
        yield f"[{', '.join(' or '.join(values(one, [])) for one in inner)}]"
    elif origin is dict:
        yield "keys with values"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "a section"
    else:
        yield _WORDS[annotation] + _bounds(metadata)


_SHORT = {recipe._off: "false", recipe._one_rate: "one rate or false"}
_WORDS = {str: "text", bool: "true or false", int: "whole number", float: "number", Any: "a section"}


def _bounds(metadata: list[Any]) -> str:
    said = []
    for bound in metadata:
        match bound:
            case Ge(ge=limit):
                said.append(f"≥ {limit:g}")
            case Gt(gt=limit):
                said.append(f"> {limit:g}")
            case Le(le=limit):
                said.append(f"≤ {limit:g}")
            case Lt(lt=limit):
                said.append(f"< {limit:g}")
    return f" {' and '.join(said)}" if said else ""


def default(field: FieldInfo) -> str:
    """What holds where a recipe does not say anything."""
    value = field.default
    if field.is_required():
        return "needed"
    if isinstance(value, BaseModel):
        said = ", ".join(f"{key}: {one}" for key, one in value if one != type(value).model_fields[key].default)
        return f"{{{said}}}" if value.model_fields_set else "its own"
    if value is None:
        return "—"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f"`{value}`" if isinstance(value, str) and value else f"{value}" if value != "" else "nothing"


def _within(annotation: Any) -> list[type[BaseModel]]:
    options = [annotation, *get_args(annotation)]
    options += [one for option in get_args(annotation) for one in get_args(option)]
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
