"""The plan of an epoch: which examples share a batch, as a pure function of seed and epoch."""

import math

import numpy as np
from jaxtyping import Int

POOL_BATCHES = 100
"""Batches that are cut from one pool: enough that their rows are of like length, few enough that they are a sample."""


class TokenBatchSampler:
    """Batches of examples of like length, within a budget of tokens; every epoch shuffled anew.

    An epoch's order is shuffled by (seed, epoch) and cut into pools of about a hundred batches. A pool is sorted by
    length, rows of the same length in shuffled order, and cut into batches as large as the budget allows; the batches
    of all pools are shuffled.

    Equation:
        cost(batch) = rows · Σ_f max_{row} length_{row, f} ≤ batch_tokens

    Args:
        lengths: tokens of each example in each sequence field.
        batch_tokens: tokens in a batch with padding, at most.
        seed: of the order.
        batch_size: rows in a batch, at most; None is no bound.

    Raises:
        ValueError: a bound below 1, an example that is beyond the budget by itself, a negative seed.

    >>> import numpy as np; from clearhead.train.data.sampler import TokenBatchSampler
    >>> batches = TokenBatchSampler(np.array([[3], [9], [4], [8]]), batch_tokens=18, seed=0)
    >>> sorted(sorted(batch.tolist()) for batch in batches.epoch(0))
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
        """The rows of each batch; every row once.

        Args:
            number: which epoch, from 0; the same number gives the same batches, whatever was asked before.
        """
        generator = np.random.default_rng(np.random.SeedSequence([self.seed, number]))
        order = generator.permutation(len(self.lengths))
        pool = self._pool_rows()
        batches: list[np.ndarray] = []
        for start in range(0, len(order), pool):
            rows = order[start : start + pool]
            batches += _cut(self.lengths, rows[_by_length(self.lengths[rows])], self.batch_tokens, self.batch_size)
        return [batches[place] for place in generator.permutation(len(batches))]

    def _pool_rows(self) -> int:
        tokens = int(self.lengths.sum(dtype=np.int64))
        batches = max(1, math.ceil(tokens / self.batch_tokens))
        rows = math.ceil(len(self.lengths) / batches)
        return max(1, POOL_BATCHES * min(rows, self.batch_size or rows))


def sequential(
    lengths: Int[np.ndarray, "N F"], *, batch_tokens: int, batch_size: int | None = None
) -> list[Int[np.ndarray, " rows"]]:
    """Batches of examples of like length, within a budget of tokens, in a fixed order: the longest first.

    Args:
        lengths: tokens of each example in each sequence field.
        batch_tokens: tokens in a batch with padding, at most.
        batch_size: rows in a batch, at most; None is no bound.

    Raises:
        ValueError: a bound below 1, an example that is beyond the budget by itself.

    >>> import numpy as np; from clearhead.train.data.sampler import sequential
    >>> [batch.tolist() for batch in sequential(np.array([[3], [9], [4], [8]]), batch_tokens=18)]
    [[1, 3], [2, 0]]
    """
    _check(lengths, batch_tokens, batch_size)
    return _cut(lengths, _by_length(lengths)[::-1], batch_tokens, batch_size)


def _by_length(lengths: Int[np.ndarray, "N F"]) -> Int[np.ndarray, " N"]:
    """The order from short to long: by the longest field, and among rows of the same one from rows whose first field is
    the shorter to those where it is the longer, and back at the next: neighbours are alike in every field. Sorted by
    the sum, pairs of sentences take five times the padding; field by field, twice."""
    longest = lengths.max(axis=1, initial=0).astype(np.int64)
    lean = 2 * lengths[:, 0].astype(np.int64) - lengths.sum(axis=1, dtype=np.int64)
    return np.lexsort((np.where(longest % 2 == 0, lean, -lean), longest))


def _cut(
    lengths: Int[np.ndarray, "N F"], order: Int[np.ndarray, " rows"], batch_tokens: int, batch_size: int | None
) -> list[Int[np.ndarray, " batch"]]:
    """Cuts an order into batches, each as large as the bounds allow."""
    ordered = lengths[order]
    cuts: list[int] = []
    start = 0
    while start < len(order):
        # no more rows than this, for each of them costs as much as the first at least
        most = min(batch_tokens // max(1, int(ordered[start].sum())), batch_size or len(order))
        longest = np.maximum.accumulate(ordered[start : start + most], axis=0)
        costs = np.arange(1, len(longest) + 1) * longest.sum(axis=1, dtype=np.int64)
        start += int(np.searchsorted(costs, batch_tokens, side="right"))
        cuts.append(start)
    return np.split(order, cuts[:-1]) if cuts else []


def _check(lengths: Int[np.ndarray, "N F"], batch_tokens: int, batch_size: int | None) -> None:
    for name, bound in (("batch_tokens", batch_tokens), ("batch_size", batch_size)):
        if bound is not None and bound < 1:
            raise ValueError(f"{name} must be at least 1; got {bound}")
    totals = lengths.sum(axis=1, dtype=np.int64)
    if totals.max(initial=0) > batch_tokens:
        row = int(totals.argmax())
        raise ValueError(
            f"example {row} has {totals[row]} tokens, more than batch_tokens={batch_tokens}; raise it, or leave such "
            "examples out"
        )
