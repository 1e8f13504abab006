"""Batches of texts of like length: a bound on the memory of each, and little padding where padding is needed."""

from collections.abc import Iterator, Sequence


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of texts, longest first, so that their tokens together stay within batch_tokens.

    A batch holds no text of less than half the length of its longest, for attention pads them to that. A text longer
    than the budget makes a batch of its own. Every index comes once.

    Args:
        lengths: tokens of each text.
        batch_tokens: the budget.

    Raises:
        ValueError: a budget below 1.

    >>> from clearhead.data.batching import token_batches
    >>> list(token_batches([3, 9, 4, 8], batch_tokens=17))
    [[1, 3], [2, 0]]
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1; got {batch_tokens}")
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        if batch and (tokens + length > batch_tokens or 2 * length < lengths[batch[0]] > _SHORT):
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += length
    if batch:
        yield batch


_SHORT = 32
"""Up to this length attention is so cheap that padding in it does not matter."""
