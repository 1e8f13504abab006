"""Compiled kernels for whole layers and decoder steps, and a switch for tools that observe the parts of a layer."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_allows_fusion: ContextVar[bool] = ContextVar("allows_fusion", default=True)


@contextlib.contextmanager
def unfused() -> Iterator[None]:
    """Compute layers part by part inside the block, so that hooks of their modules are called.

    The results can differ by a rounding: attention sums in another order.
    """
    token = _allows_fusion.set(False)
    try:
        yield
    finally:
        _allows_fusion.reset(token)


def allows_fusion() -> bool:
    """Return whether a whole layer or decoder step may be computed by one call: False inside `unfused()`."""
    return _allows_fusion.get()
