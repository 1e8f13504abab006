"""Augmentation: reproducible, at the given rate, and without changing protected ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clearhead.data.augmentation import (
    local_shuffle,
    mask_tokens,
    span_masking,
    token_deletion,
    token_masking,
    token_replacement,
    token_swapping,
)

MASK, VOCABULARY, PROTECTED = 4, 30, (0, 1, 2, 29)
texts = arrays(st.sampled_from([np.int32, np.int64]), st.integers(0, 40), elements=st.integers(0, VOCABULARY - 1))
rates = st.floats(0, 1)
seeds = st.integers(0, 2**32)

AUGMENTATIONS = {
    "mask_tokens": lambda ids, generator, rate: mask_tokens(
        ids, generator, mask_id=MASK, vocab_size=VOCABULARY, protected=PROTECTED, rate=rate
    )[0],
    "token_masking": lambda ids, generator, rate: token_masking(
        ids, generator, mask_id=MASK, rate=rate, protected=PROTECTED
    ),
    "span_masking": lambda ids, generator, rate: span_masking(
        ids, generator, mask_id=MASK, rate=rate, protected=PROTECTED
    ),
    "token_replacement": lambda ids, generator, rate: token_replacement(
        ids, generator, vocab_size=VOCABULARY, rate=rate, protected=PROTECTED
    ),
    "token_deletion": lambda ids, generator, rate: token_deletion(ids, generator, rate=rate, protected=PROTECTED),
    "token_swapping": lambda ids, generator, rate: token_swapping(ids, generator, rate=rate, protected=PROTECTED),
    "local_shuffle": lambda ids, generator, rate: local_shuffle(
        ids, generator, distance=round(9 * rate), protected=PROTECTED
    ),
}


@pytest.fixture(params=AUGMENTATIONS)
def augment(request):
    return AUGMENTATIONS[request.param]


def random(seed):
    return np.random.default_rng(seed)


def long_text(length=100_000, seed=5):
    return random(seed).integers(5, 25, length)


def near(result, expected, count):
    """Check that a count is within five standard deviations of its expectation."""
    assert abs(result - expected) < 5 * np.sqrt(expected * (1 - expected) / count) + 1e-9, (result, expected)


@given(ids=texts, seed=seeds, rate=rates)
def test_same_seed_gives_the_same_result_without_side_effects(augment, ids, seed, rate):
    before = ids.copy()
    ids.flags.writeable = False
    first, second = augment(ids, random(seed), rate), augment(ids, random(seed), rate)
    assert first.tolist() == second.tolist()
    assert first.dtype == ids.dtype
    assert ids.tolist() == before.tolist()
    assert not np.shares_memory(first, ids)


@given(ids=texts, seed=seeds, rate=rates)
def test_protected_ids_are_neither_changed_nor_inserted(augment, ids, seed, rate):
    result = augment(ids, random(seed), rate)
    closed = np.isin(ids, PROTECTED)
    assert result[np.isin(result, PROTECTED)].tolist() == ids[closed].tolist()
    if len(result) == len(ids):
        assert result[closed].tolist() == ids[closed].tolist()
    assert ((result >= 0) & (result < VOCABULARY)).all()


@given(ids=texts, seed=seeds)
def test_rate_zero_changes_nothing(augment, ids, seed):
    assert augment(ids, random(seed), 0.0).tolist() == ids.tolist()


def test_result_depends_on_the_seed(augment):
    ids = long_text(200)
    assert augment(ids, random(0), 0.5).tolist() != augment(ids, random(1), 0.5).tolist()


@given(ids=texts, seed=seeds, rate=rates)
def test_swapping_and_shuffling_keep_all_tokens(ids, seed, rate):
    for name in ("token_swapping", "local_shuffle"):
        assert sorted(AUGMENTATIONS[name](ids, random(seed), rate)) == sorted(ids)


@given(
    seed=seeds,
    closed=st.lists(st.booleans(), max_size=60),
    distance=st.integers(0, 9),
    rate=rates,
)
def test_maximum_distance_of_a_move(seed, closed, distance, rate):
    ids = np.arange(len(closed))
    protected = {index for index, is_closed in enumerate(closed) if is_closed}
    result = local_shuffle(ids, random(seed), distance=distance, protected=protected)
    assert (np.abs(result - ids) <= distance).all()
    assert (np.abs(token_swapping(ids, random(seed), rate=rate, protected=protected) - ids) <= 1).all()
    for index in protected:  # nothing passes a protected token
        assert sorted(result[:index]) == list(range(index))


def test_local_shuffle_reaches_the_distance():
    ids = np.arange(20_000)
    for distance in (1, 2, 3):
        moved = local_shuffle(ids, random(2), distance=distance) - ids
        assert moved.max() == distance
        assert moved.min() == -distance


@pytest.mark.parametrize("rate", [0.02, 0.15, 0.6, 1.0])
def test_rates(rate):
    ids = long_text()
    generator = random(11)
    near((token_masking(ids, generator, mask_id=MASK, rate=rate) == MASK).mean(), rate, len(ids))
    assert abs((span_masking(ids[:20_000], generator, mask_id=MASK, rate=rate) == MASK).sum() - 20_000 * rate) <= 1
    changed = token_replacement(ids, generator, vocab_size=VOCABULARY, rate=rate, protected=PROTECTED) != ids
    near(changed.mean(), rate * (1 - 1 / (VOCABULARY - len(PROTECTED))), len(ids))
    near(1 - len(token_deletion(ids, generator, rate=rate)) / len(ids), min(rate, 1 - 1e-5), len(ids))
    places = np.arange(len(ids))
    near((token_swapping(places, generator, rate=rate) != places).mean(), rate, len(ids) / 2)


def test_swaps_start_from_either_token():
    swapped = {tuple(token_swapping(np.arange(3), random(seed), rate=1.0)) for seed in range(20)}
    assert swapped == {(1, 0, 2), (0, 2, 1)}


def test_short_texts_keep_the_rates_on_average():
    generator = random(3)
    masked = [(span_masking(long_text(7), generator, mask_id=MASK, rate=0.2) == MASK).mean() for _ in range(4000)]
    near(np.mean(masked), 0.2, 4000)


def test_spans_have_a_mean_length_of_three():
    ids = long_text(200_000)
    masked = span_masking(ids, random(4), mask_id=MASK, rate=0.002) == MASK
    starts = np.flatnonzero(np.diff(masked.astype(int), prepend=0) == 1)
    assert 2.5 < masked.sum() / len(starts) < 3.5
    lengths = [int(np.argmin(masked[start:])) for start in starts]
    near(np.mean(np.array(lengths) == 1), 1 / 3, len(lengths))


def test_replacement_draws_from_all_unprotected_ids():
    result = token_replacement(long_text(), random(6), vocab_size=VOCABULARY, rate=1.0, protected=[*PROTECTED, 99, -1])
    counts = np.bincount(result, minlength=VOCABULARY)
    assert counts[list(PROTECTED)].sum() == 0
    rest = np.delete(counts, PROTECTED)
    for count in rest:
        near(count / len(result), 1 / len(rest), len(result))
    with pytest.raises(ValueError, match="all 3 ids of the vocabulary are protected"):
        token_replacement(result, random(6), vocab_size=3, rate=0.1, protected=PROTECTED)


def test_deletion_keeps_one_token():
    results = {
        tuple(token_deletion(np.array([1, 7, 8, 2]), random(seed), rate=1.0, protected=[1, 2])) for seed in range(9)
    }
    assert results == {(1, 7, 2), (1, 8, 2)}
    assert token_deletion(np.array([1, 2]), random(0), rate=1.0, protected=[1, 2]).tolist() == [1, 2]


@given(ids=texts, seed=seeds, rate=rates)
def test_labels_are_the_masked_ids(ids, seed, rate):
    inputs, labels = mask_tokens(ids, random(seed), mask_id=MASK, vocab_size=VOCABULARY, protected=PROTECTED, rate=rate)
    chosen = labels != -100
    assert labels[chosen].tolist() == ids[chosen].tolist()
    assert inputs[~chosen].tolist() == ids[~chosen].tolist()
    assert not np.isin(ids[chosen], PROTECTED).any()


def test_masking_uses_the_80_10_10_split():
    ids = np.concatenate([long_text(), np.zeros(1000, np.int64)])
    inputs, labels = mask_tokens(ids, random(8), mask_id=MASK, vocab_size=VOCABULARY, protected=PROTECTED)
    chosen = labels != -100
    count = int(chosen.sum())
    near(count / 100_000, 0.15, 100_000)
    near((inputs[chosen] == MASK).mean(), 0.8 + 0.1 / 26, count)
    near((inputs[chosen] == ids[chosen]).mean(), 0.1 + 0.1 / 26, count)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_invalid_rates(rate):
    for name, augment in AUGMENTATIONS.items():
        if name != "local_shuffle":
            with pytest.raises(ValueError, match="rate must be from 0 to 1"):
                augment(long_text(3), random(0), rate)
    with pytest.raises(ValueError, match="distance must be at least 0; got -1"):
        local_shuffle(long_text(3), random(0), distance=-1)
