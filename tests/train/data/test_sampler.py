"""Batches of an epoch: every row once, within the limits, reproducible by the seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clearhead.train.data.sampler import TokenBatchSampler, sequential_batches

lengths = st.tuples(st.integers(0, 120), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.int32, shape, elements=st.integers(1, 40))
)


def check(table, batches, budget, size):
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(table)))
    for batch in batches:
        assert len(batch) > 0
        assert len(batch) * table[batch].max(axis=0).sum() <= budget
        assert size is None or len(batch) <= size


@given(lengths, st.integers(120, 600), st.none() | st.integers(1, 9), st.integers(0, 5), st.integers(0, 3))
def test_every_row_once_within_the_limits(table, budget, size, seed, epoch):
    batches = TokenBatchSampler(table, batch_tokens=budget, seed=seed, batch_size=size)
    planned = batches.epoch(epoch)
    check(table, planned, budget, size)
    check(table, sequential_batches(table, batch_tokens=budget, batch_size=size), budget, size)
    again = TokenBatchSampler(table, batch_tokens=budget, seed=seed, batch_size=size)
    again.epoch(epoch + 1)  # earlier calls have no effect
    assert [batch.tolist() for batch in again.epoch(epoch)] == [batch.tolist() for batch in planned]


def captions(rows, seed=0):
    """Return pairs of lengths like those of captions in two languages."""
    generator = np.random.default_rng(seed)
    first = np.clip(generator.gamma(12, 1.1, rows), 3, 40)
    return np.stack([first, np.clip(first * generator.normal(1, 0.17, rows), 3, 40)], axis=1).astype(np.int32)


def padding(table, batches):
    padded = sum(len(batch) * int(table[batch].max(axis=0).sum()) for batch in batches)
    return 1 - int(table.sum()) / padded


def test_padding_is_small_and_batches_are_full():
    table = captions(30_000)
    batches = TokenBatchSampler(table, batch_tokens=4096, seed=1).epoch(0)
    assert padding(table, batches) < 0.04
    assert padding(table, sequential_batches(table, batch_tokens=4096)) < 0.025
    assert len(batches) < 1.06 * table.sum() / 4096
    assert padding(table[:, :1], TokenBatchSampler(table[:, :1], batch_tokens=4096, seed=1).epoch(0)) < 0.02


def test_seeds_and_epochs_differ_in_the_order_and_in_the_batches():
    table = captions(5_000)

    def epoch_batches(seed, epoch):
        return [tuple(batch) for batch in TokenBatchSampler(table, batch_tokens=1000, seed=seed).epoch(epoch)]

    first, others = epoch_batches(0, 0), [epoch_batches(0, 1), epoch_batches(1, 0)]
    for other in others:
        assert other != first
        assert len({frozenset(batch) for batch in first} & {frozenset(batch) for batch in other}) < len(first) / 20
    # batches are not ordered by length
    longest = np.array([table[list(batch)].max() for batch in first])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2


def test_batches_use_the_limit_completely():
    table = np.full((9, 2), 3)
    assert [len(batch) for batch in sequential_batches(table, batch_tokens=18)] == [3, 3, 3]
    assert [len(batch) for batch in sequential_batches(table, batch_tokens=17)] == [2, 2, 2, 2, 1]
    assert [len(batch) for batch in sequential_batches(table, batch_tokens=99, batch_size=4)] == [4, 4, 1]


def test_fixed_order_starts_with_the_longest():
    table = captions(500)
    longest = [int(table[batch].max()) for batch in sequential_batches(table, batch_tokens=400)]
    assert longest == sorted(longest, reverse=True)


def test_no_rows_no_batches():
    empty = np.zeros((0, 2), np.int32)
    assert TokenBatchSampler(empty, batch_tokens=5, seed=0).epoch(0) == []
    assert sequential_batches(empty, batch_tokens=5) == []


def test_invalid_limits_are_refused():
    table = np.array([[3, 4], [5, 6]], np.int32)
    with pytest.raises(ValueError, match="example 1 has 11 tokens, more than batch_tokens=10"):
        TokenBatchSampler(table, batch_tokens=10, seed=0)
    with pytest.raises(ValueError, match="batch_tokens must be at least 1; got 0"):
        sequential_batches(table, batch_tokens=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        TokenBatchSampler(table, batch_tokens=100, seed=0, batch_size=0)
    with pytest.raises(ValueError, match="seed must be at least 0; got -1"):
        TokenBatchSampler(table, batch_tokens=100, seed=-1)
