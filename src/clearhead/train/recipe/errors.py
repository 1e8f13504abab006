"""Error messages for invalid recipes."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from clearhead.choices import suggest


class RecipeError(ValueError):
    """A value of a recipe was rejected during the training; the message begins with its key."""


@contextlib.contextmanager
def named(key: str) -> Iterator[None]:
    """Begin the message of a ValueError in the block with a key of the recipe.

    >>> from clearhead.train.recipe.errors import named
    >>> with named("training.device"): raise ValueError("no such device")
    Traceback (most recent call last):
    clearhead.train.recipe.errors.RecipeError: training.device: no such device

    Raises:
        RecipeError: the block raised a ValueError.
    """
    try:
        yield
    except ValueError as error:
        raise RecipeError(f"{key}: {error}") from None


def format_error(error: ValidationError, schema: type[BaseModel], prefix: tuple[str, ...]) -> str:
    """Format the most useful of a recipe's validation errors as one sentence.

    Args:
        error: the errors.
        schema: the class that was validated.
        prefix: sections around it.
    """
    detail = _most_useful(error.errors())
    path = _path(detail)
    key = ".".join([*prefix, *path])
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key}{_known_key(schema, path)}"
    if detail["type"] == "missing":
        return f"{key} is required"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{key}: {message}" if key else message
    # a value that may have several types has one error for each
    expected = dict.fromkeys(
        _EXPECTED.get(other["type"], other["msg"].replace("Input", "it", 1))
        for other in error.errors()
        if other["input"] is detail["input"]
    )
    value = "null" if detail["input"] is None else repr(detail["input"])
    return f"{key} is {value:.{_MAX_SHOWN}}: {' or '.join(expected)}"


def _known_key(schema: type[BaseModel], path: Sequence[str]) -> str:
    """Return the suggestion for an unknown key; at the top level, also the section that has this key."""
    if len(path) == 1:
        for name in schema.model_fields:
            section = _section_at(schema, [name])
            if section is not schema and path[0] in section.model_fields:
                return f"; did you mean '{name}.{path[0]}'?"
    return suggest(path[-1], list(_section_at(schema, path[:-1]).model_fields))


def _most_useful(details: Sequence[ErrorDetails]) -> ErrorDetails:
    """Select an unknown key first, because a misspelled key also appears as a missing one; else the deepest error."""
    unknown = [detail for detail in details if detail["type"] == "extra_forbidden"]
    if unknown:
        return unknown[0]
    same_key = [detail for detail in details if detail["loc"][:2] == details[0]["loc"][:2]]
    return max(same_key, key=lambda detail: len(_path(detail)))


def _path(detail: ErrorDetails) -> list[str]:
    return [str(part) for part in detail["loc"] if str(part) not in _UNION_BRANCHES]


_MAX_SHOWN = 80
"""Maximum number of characters of a value in a message."""

_EXPECTED = {
    "string_type": "expected a string",
    "int_type": "expected an integer",
    "int_parsing": "expected an integer",
    "int_from_float": "expected an integer",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "list_type": "expected a list, such as [a, b]",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
}
"""Messages for pydantic's error types."""


def _section_at(schema: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    for part in path:
        field = schema.model_fields.get(part)
        options = [] if field is None else [field.annotation, *get_args(field.annotation)]
        sections = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
        schema = sections[0] if sections else schema
    return schema


_UNION_BRANCHES = {
    *("str", "int", "list[str]", "dict[str,union[str,list[str]]]", "function-before", "nullable"),
}
"""Names that pydantic adds to the path of an error in a union."""
