"""What is wrong with a recipe, in words."""

import difflib
from collections.abc import Sequence
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """ "; did you mean …?" for a name that is not known, or nothing where none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(known)}"


def format_error(error: ValidationError, kind: type[BaseModel], before: tuple[str, ...]) -> str:
    """The first of a recipe's faults, in words."""
    fault = _first(error.errors())
    place = _place(fault)
    key = ".".join([*before, *place])
    if fault["type"] == "extra_forbidden":
        return f"there is no key {key}{did_you_mean(place[-1], list(_section(kind, place[:-1]).model_fields))}"
    if fault["type"] == "missing":
        return f"{key} is missing; it is needed"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    # a value that may be of several types has a fault for each
    wanted = dict.fromkeys(
        _WANTED.get(one["type"], one["msg"].replace("Input", "it", 1))
        for one in error.errors()
        if one["input"] is fault["input"]
    )
    return f"{key} is {fault['input']!r}: {' or '.join(wanted)}"


def _first(faults: Sequence[ErrorDetails]) -> ErrorDetails:
    """The fault that says most: a misspelt key before one that is missing for it; of a value that may be of several
    types the place furthest inside."""
    misspelt = [fault for fault in faults if fault["type"] == "extra_forbidden"]
    if misspelt:
        return misspelt[0]
    beside = [fault for fault in faults if fault["loc"][:2] == faults[0]["loc"][:2]]
    return max(beside, key=lambda fault: len(_place(fault)))


def _place(fault: ErrorDetails) -> list[str]:
    return [str(part) for part in fault["loc"] if str(part) not in _ALTERNATIVES]


_WANTED = {
    "string_type": "a text is wanted",
    "int_type": "a whole number is wanted",
    "int_parsing": "a whole number is wanted",
    "int_from_float": "a whole number is wanted",
    "float_type": "a number is wanted",
    "float_parsing": "a number is wanted",
    "bool_type": "true or false is wanted",
    "bool_parsing": "true or false is wanted",
    "list_type": "a list is wanted",
    "dict_type": "keys with values are wanted",
    "model_type": "keys with values are wanted",
}
"""Faults in plainer words than pydantic's."""


def _section(kind: type[BaseModel], place: Sequence[str]) -> type[BaseModel]:
    for part in place:
        field = kind.model_fields.get(part)
        options = [] if field is None else [field.annotation, *get_args(field.annotation)]
        inner = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
        kind = inner[0] if inner else kind
    return kind


_ALTERNATIVES = {
    *("str", "int", "list[str]", "dict[str,union[str,list[str]]]", "function-before", "nullable"),
}
"""What pydantic puts into the place of a fault for a type of several."""
