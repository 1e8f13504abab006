"""Write docs/recipe.md and the table of regularizers in docs/training.md from the classes that check recipes.

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

from clearhead.train.recipe.recipe import Recipe
from clearhead.train.regularizers import REGULARIZERS
from clearhead.train.regularizers.base import false_to_none
from clearhead.train.regularizers.dropout import expand_rate
from clearhead.train.tasks.registry import TASKS

PAGE = Path(__file__).parent / "recipe.md"
TRAINING_PAGE = Path(__file__).parent / "training.md"
TABLE_BEGIN = "<!-- regularizers: written by docs/make_recipe_reference.py -->\n\n"
TABLE_END = "\n<!-- end of regularizers -->\n"
HEAD = """# Recipe keys

This page lists every key of a recipe, with its values and its default. A recipe is a YAML file of sections:

```yaml
task: classification
output: runs/reviews
data:
  train: reviews-train.tsv
  validation: reviews-valid.tsv
model:
  init_from: all-MiniLM-L6-v2     # without it, a new model of the family's default size is trained
optimizer:
  learning_rate: 0.00003          # with init_from, the defaults are for fine-tuning
  warmup_steps: 100
training:
  epochs: 3
```

`clearhead train recipe.yaml key=value …` changes keys from the command line, with dots between sections and keys:
`training.steps=100`, `regularize.dropout.attention=0.1`, `data.train.source=my.en`. Unknown keys, values of a wrong
type and incompatible keys are errors, reported before anything is computed. [Train a model](training.md) shows how to
use recipes.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, *(section(name, schema) for name, schema in sections(Recipe, ""))]
    for name, task in TASKS.items():
        parts.append(section(f"objective of the task {name}", task.objective))
    return "\n".join(parts)


def with_regularizers(text: str) -> str:
    """Return docs/training.md with the current table of regularizers."""
    before, _, rest = text.partition(TABLE_BEGIN)
    _, _, after = rest.partition(TABLE_END)
    return before + TABLE_BEGIN + regularizer_table() + TABLE_END + after


def regularizer_table() -> str:
    """Return the table of all regularizers."""
    rows = ["| switch | on | off | source | code |", "|---|---|---|---|---|"]
    for entry in REGULARIZERS:
        cells = [f"`{entry.name}`", entry.equation, entry.without, entry.source, f"`{entry.code}`"]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def sections(schema: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a section and its subsections, each with its path."""
    yield path or "Top level", schema
    for name, field in schema.model_fields.items():
        for inner in _subsections(field.annotation):
            yield from sections(inner, f"{path}.{name}".lstrip("."))


def section(name: str, schema: type[BaseModel]) -> str:
    """Return the heading of a section, its purpose and its keys."""
    purpose, meanings = docstring_parts(schema)
    title = name if " " in name else f"`{name}`"
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, field in schema.model_fields.items():
        shorthand = [_SHORTHANDS[part.func] for part in field.metadata if isinstance(part, BeforeValidator)]
        value = " or ".join(dict.fromkeys([*values(field.annotation, field.metadata), *shorthand]))
        if schema is Recipe and key == "task":
            value = ", ".join(f"`{task}`" for task in TASKS)
        cells = [f"`{key}`", value, default(field), meanings[key]]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([f"## {title}", "", purpose, "", *rows, ""])


def docstring_parts(schema: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """Return the purpose of a class and the meaning of each key, from its docstring."""
    purpose, _, rest = inspect.cleandoc(schema.__doc__ or "").partition("\n\nArgs:\n")
    meanings: dict[str, str] = {}
    keys: list[str] = []
    for line in rest.partition("\n\n")[0].splitlines():
        entry = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if entry:
            keys = entry[1].split(", ")
            meanings |= dict.fromkeys(keys, entry[2])
        else:
            meanings |= {key: f"{meanings[key]} {line.strip()}" for key in keys}
    return " ".join(purpose.split()), meanings


def values(annotation: Any, metadata: list[Any]) -> Iterator[str]:
    """Yield the types of values that a key accepts, in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [bound for part in inner[1:] for bound in getattr(part, "metadata", [part])]
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
        yield f"[{', '.join(' or '.join(values(part, [])) for part in inner)}]"
    elif origin is dict:
        yield "a mapping"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "a section"
    else:
        yield _TYPES[annotation] + _bounds(metadata)


_SHORTHANDS = {false_to_none: "false", expand_rate: "one rate or false"}
_TYPES = {str: "string", bool: "true or false", int: "integer", float: "number", Any: "a section"}


def _bounds(metadata: list[Any]) -> str:
    limits = []
    for bound in metadata:
        match bound:
            case Ge(ge=limit):
                limits.append(f"≥ {limit:g}")
            case Gt(gt=limit):
                limits.append(f"> {limit:g}")
            case Le(le=limit):
                limits.append(f"≤ {limit:g}")
            case Lt(lt=limit):
                limits.append(f"< {limit:g}")
    return f" {' and '.join(limits)}" if limits else ""


def default(field: FieldInfo) -> str:
    """Return a key's default value as text."""
    value = field.default
    if field.is_required():
        return "required"
    if isinstance(value, BaseModel):
        items = ", ".join(f"{key}: {item}" for key, item in value if item != type(value).model_fields[key].default)
        return f"{{{items}}}" if value.model_fields_set else "its defaults"
    if value is None:
        return "—"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f"`{value}`" if isinstance(value, str) and value else f"{value}" if value != "" else "empty"


def _subsections(annotation: Any) -> list[type[BaseModel]]:
    options = [annotation, *get_args(annotation)]
    options += [inner for option in get_args(annotation) for inner in get_args(option)]
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    TRAINING_PAGE.write_text(with_regularizers(TRAINING_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
