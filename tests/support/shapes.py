"""Check the shapes and types of a function's arguments and result, in its first calls only."""

import functools
import sys

from beartype import beartype

CALLS = 100
"""Number of checked calls of each function in a process: checks of all calls would double the time of the tests."""


def check_first_calls(function):
    """Return a function whose first calls are checked by beartype.

    Afterwards, the function of the library with the same name is marked as `typing.no_type_check` does, so that
    jaxtyping calls it directly.
    """
    checked = beartype(function)
    remaining = CALLS

    @functools.wraps(function)
    def first_calls(*arguments, **options):
        nonlocal remaining
        if remaining == 0:
            _mark(function.__module__, function.__qualname__)
        remaining -= 1
        return checked(*arguments, **options)

    return first_calls


def _mark(module, name):
    owner = sys.modules.get(module)
    *parts, last = name.split(".")
    for part in parts:
        owner = getattr(owner, part, None)
    found = vars(owner).get(last) if owner is not None else None
    found = getattr(found, "__func__", found)
    if callable(found):
        found.__no_type_check__ = True
