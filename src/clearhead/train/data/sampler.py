"""Assign examples to batches, as a pure function of seed and epoch."""

import math

import numpy as np
from jaxtyping import Int

POOL_BATCHES = 100
"""Batches per pool: enough for rows of similar length in a batch, few enough for a random sample of the data."""


class TokenBatchSampler:
    """Batches of examples of similar length with at most a given number of tokens, shuffled in every epoch.

    An epoch's order is shuffled by (seed, epoch) and divided into pools of about a hundred batches. Each pool is sorted
    by length, with rows of the same length in shuffled order, and split into batches as large as the limits allow.
    Finally the batches of all pools are shuffled.

    Equation:
        cost(batch) = rows · Σ_f max_{row} length_{row, f} ≤ batch_tokens

    Args:
        lengths: tokens of each example in each sequence field.
        batch_tokens: maximum number of tokens in a batch, including padding.
        seed: seed of the order.
        batch_size: maximum number of rows in a batch; None for no limit.

    Raises:
        ValueError: a limit below 1, an example with more tokens than a batch, or a negative seed.

    >>> import numpy as np; from clearhead.train.data.sampler import TokenBatchSampler
    >>> sampler = TokenBatchSampler(np.array([[3], [9], [4], [8]]), batch_tokens=18, seed=0)
    >>> sorted(sorted(batch.tolist()) for batch in sampler.epoch(0))
    [[0, 2], [1, 3]]
    """

    def __init__(
        self, lengths: Int[np.ndarray, "N F"], *, batch_tokens: int, seed: int, batch_size: int | None = None
    ) -> None:
        _check(lengths, batch_tokens, batch_size)
        if seed < 0:
            raise ValueError(f"seed must be at least 0; got {seed}")
        self.lengths, self.batch_tokens, self.seed, self.batch_size = lengths, batch_tokens, seed, batch_size

    def epoch(self, number: int) -> list[Int[np.ndarray, " rows"]]:
        """Return the rows of each batch of an epoch; every row appears once.

        Args:
            number: number of the epoch, from 0. The same number always gives the same batches.
        """
        generator = np.random.default_rng(np.random.SeedSequence([self.seed, number]))
        order = generator.permutation(len(self.lengths))
        pool_rows = self._pool_rows()
        batches: list[np.ndarray] = []
        for start in range(0, len(order), pool_rows):
            rows = order[start : start + pool_rows]
            batches += _split(self.lengths, rows[_by_length(self.lengths[rows])], self.batch_tokens, self.batch_size)
        return [batches[index] for index in generator.permutation(len(batches))]

    def _pool_rows(self) -> int:
        num_tokens = int(self.lengths.sum(dtype=np.int64))
        num_batches = max(1, math.ceil(num_tokens / self.batch_tokens))
        rows_per_batch = math.ceil(len(self.lengths) / num_batches)
        return max(1, POOL_BATCHES * min(rows_per_batch, self.batch_size or rows_per_batch))


def sequential_batches(
    lengths: Int[np.ndarray, "N F"], *, batch_tokens: int, batch_size: int | None = None
) -> list[Int[np.ndarray, " rows"]]:
    """Return batches of examples of similar length in a fixed order, the longest first.

    Args:
        lengths: tokens of each example in each sequence field.
        batch_tokens: maximum number of tokens in a batch, including padding.
        batch_size: maximum number of rows in a batch; None for no limit.

    Raises:
        ValueError: a limit below 1, or an example with more tokens than a batch.

    >>> import numpy as np; from clearhead.train.data.sampler import sequential_batches
    >>> [batch.tolist() for batch in sequential_batches(np.array([[3], [9], [4], [8]]), batch_tokens=18)]
    [[1, 3], [2, 0]]
    """
    _check(lengths, batch_tokens, batch_size)
    return _split(lengths, _by_length(lengths)[::-1], batch_tokens, batch_size)


def _by_length(lengths: Int[np.ndarray, "N F"]) -> Int[np.ndarray, " N"]:
    """Return an order from short to long with neighbors that are similar in every field.

    The longest field is the first key. Among rows with the same one, the share of the first field increases, and at
    the next longest field decreases. For sentence pairs, sorting by the sum needs five times the padding, and sorting
    field by field twice.
    """
    longest = lengths.max(axis=1, initial=0).astype(np.int64)
    first_share = 2 * lengths[:, 0].astype(np.int64) - lengths.sum(axis=1, dtype=np.int64)
    return np.lexsort((np.where(longest % 2 == 0, first_share, -first_share), longest))


def _split(
    lengths: Int[np.ndarray, "N F"], order: Int[np.ndarray, " rows"], batch_tokens: int, batch_size: int | None
) -> list[Int[np.ndarray, " batch"]]:
    """Split an order into batches as large as the limits allow."""
    ordered = lengths[order]
    ends: list[int] = []
    start = 0
    while start < len(order):
        # an upper bound of the rows, because each one costs at least as much as the first
        max_rows = min(batch_tokens // max(1, int(ordered[start].sum())), batch_size or len(order))
        longest = np.maximum.accumulate(ordered[start : start + max_rows], axis=0)
        costs = np.arange(1, len(longest) + 1) * longest.sum(axis=1, dtype=np.int64)
        start += int(np.searchsorted(costs, batch_tokens, side="right"))
        ends.append(start)
    return np.split(order, ends[:-1]) if ends else []


def _check(lengths: Int[np.ndarray, "N F"], batch_tokens: int, batch_size: int | None) -> None:
    for name, limit in (("batch_tokens", batch_tokens), ("batch_size", batch_size)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} must be at least 1; got {limit}")
    totals = lengths.sum(axis=1, dtype=np.int64)
    if totals.max(initial=0) > batch_tokens:
        row = int(totals.argmax())
        raise ValueError(
            f"example {row} has {totals[row]} tokens, more than batch_tokens={batch_tokens}; increase it, or remove "
            "such examples"
        )
