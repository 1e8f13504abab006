"""Batches of texts of like length: little padding, and a bound on the memory of each."""

from collections.abc import Iterator, Sequence

MULTIPLE = 16
"""Lengths are padded to a multiple of this: so kernels, and the order of every sum, are alike whatever the batch."""


def padded_length(length: int) -> int:
    """A length rounded up to the next multiple of 16."""
    return -(-length // MULTIPLE) * MULTIPLE


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of texts, longest first, so that rows times longest row stays within batch_tokens.

    A text longer than the budget makes a batch of its own. Every index comes once.

    Args:
        lengths: tokens of each text.
        batch_tokens: the budget, padding included.

    Raises:
        ValueError: a budget below 1.

    >>> from clearhead.text.batching import token_batches
    >>> list(token_batches([3, 9, 4, 8], batch_tokens=48))
    [[1, 3, 2], [0]]
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1; got {batch_tokens}")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // padded_length(max(1, lengths[order[start]])))
        yield order[start : start + rows]
        start += rows
