"""Form batches of texts of similar length, with a limit on their tokens."""

from collections.abc import Iterator, Sequence


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of text indices, longest texts first, with at most batch_tokens tokens each.

    A batch only contains texts of at least half the length of its longest one, because attention pads them to that
    length. A text longer than the limit forms a separate batch. Each index occurs once.

    Args:
        lengths: the number of tokens of each text.
        batch_tokens: the maximum number of tokens in a batch.

    Raises:
        ValueError: the limit is below 1.

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
"""Length up to which the cost of padding in attention is negligible."""
