"""Message for an interface whose framework is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def framework(extra: str) -> Iterator[None]:
    """Name the extra that installs a framework, if its import in the block fails.

    Args:
        extra: name of the extra.

    Raises:
        ModuleNotFoundError: the framework is not installed.

    >>> with framework("langchain"):
    ...     import no_such_framework
    Traceback (most recent call last):
    ModuleNotFoundError: No module named 'no_such_framework'. Install it: pip install "clearhead[langchain]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = f'{error}. Install it: pip install "clearhead[{extra}]"'
        raise ModuleNotFoundError(message, name=error.name) from None
