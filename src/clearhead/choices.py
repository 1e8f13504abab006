"""Options with a few values: check them, and suggest the value that was meant."""

import difflib
from collections.abc import Sequence


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Check that an option has one of its values.

    Raises:
        ValueError: another value; the message lists the values and suggests the nearest.

    >>> from clearhead.choices import check_choice
    >>> check_choice("pooling", "meen", ["mean", "cls", "max"])
    Traceback (most recent call last):
    ValueError: pooling must be one of mean, cls, max; got 'meen'; did you mean 'mean'?
    """
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r:.60}{did_you_mean(value, known)}")


def did_you_mean(value: object, known: Sequence[str]) -> str:
    """Return a question about the known value that is nearest to another; "" where none is near.

    >>> from clearhead.choices import did_you_mean
    >>> did_you_mean("txt", ["text", "label"])
    "; did you mean 'text'?"
    """
    close = difflib.get_close_matches(str(value), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
