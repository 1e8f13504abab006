"""Compiled kernels for whole layers and decoder steps, and a switch for tools that observe the parts of a layer."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_is_fused: ContextVar[bool] = ContextVar("is_fused", default=True)


@contextlib.contextmanager
def unfused() -> Iterator[None]:
    """Compute layers part by part inside the block, so that hooks of their modules are called.

    The results can differ by a rounding: attention sums in another order.
    """
    token = _is_fused.set(False)
    try:
        yield
    finally:
        _is_fused.reset(token)


def is_fused() -> bool:
    """Return whether a layer may be computed by one call."""
    return _is_fused.get()
