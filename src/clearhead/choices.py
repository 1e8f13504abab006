"""Check the names and values of options, and suggest the closest one."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Check that an option has one of its allowed values.

    Args:
        name: name of the option.
        value: its value.
        known: the allowed values.

    Raises:
        ValueError: the value is not allowed. The message lists the values and suggests the closest one.

    >>> from clearhead.choices import check_choice
    >>> check_choice("pooling", "meen", ["mean", "cls", "max"])
    Traceback (most recent call last):
    ValueError: pooling must be one of mean, cls, max; got 'meen'; did you mean 'mean'?
    """
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r:.60}{did_you_mean(value, known)}")


def did_you_mean(value: object, known: Sequence[str]) -> str:
    """Return a suggestion of the known value that is closest to a value; "" if none is close.

    >>> from clearhead.choices import did_you_mean
    >>> did_you_mean("txt", ["text", "label"])
    "; did you mean 'text'?"
    """
    close = difflib.get_close_matches(str(value), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def suggest(value: object, known: Sequence[str]) -> str:
    """Return a suggestion of the known value that is closest to a value, or the list of all if none is close.

    >>> from clearhead.choices import suggest
    >>> suggest("x", ["text", "label"])
    '; available: text, label'
    """
    return did_you_mean(value, known) or f"; available: {', '.join(known)}"


def hide_keywords(function: F) -> F:
    """Hide the parameter that collects unknown keywords from the signature that `help` shows.

    >>> from clearhead.choices import hide_keywords
    >>> @hide_keywords
    ... def encode(text, **unknown): pass
    >>> import inspect
    >>> inspect.signature(encode)
    <Signature (text)>
    """
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    return function


def refuse_unknown(
    function: str, options: Mapping[str, object], known: Sequence[str], hints: Mapping[str, str]
) -> None:
    """Check that a function got no unknown keyword.

    Args:
        function: name of the function.
        options: the keywords that its signature does not name.
        known: the keywords that it takes.
        hints: keywords of other libraries -> what to do instead.

    Raises:
        TypeError: there is an unknown keyword.

    >>> from clearhead.choices import refuse_unknown
    >>> refuse_unknown("encode", {"poling": "cls"}, ["pooling"], {})
    Traceback (most recent call last):
    TypeError: encode() has no option 'poling'; did you mean 'pooling'?
    """
    for name in options:
        hint = f". {hints[name]}" if name in hints else did_you_mean(name, known)
        raise TypeError(
            f"{function}() has no option {name!r}{hint}" + ("" if hint else f"; it takes {', '.join(known)}")
        )
