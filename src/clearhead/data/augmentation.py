"""Change token ids at random, as noise for training.

All functions are pure: they return new ids and take all randomness from the given generator. Protected ids, such as the
start and end tokens, are never changed, moved, removed or inserted.
"""

from collections.abc import Collection

import numpy as np
from jaxtyping import Bool, Int, Int64

Ids = Int[np.ndarray, " L"]

IGNORED = -100
"""Label of tokens without a loss: the default ignore_index of torch.nn.functional.cross_entropy."""


def mask_tokens(
    ids: Ids,
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
    protected: Collection[int] = (),
    rate: float = 0.15,
) -> tuple[Ids, Int64[np.ndarray, " L"]]:
    """Return the inputs and labels of masked language modeling.

    Equation:
        P(chosen) = rate; P(mask | chosen) = 0.8, P(random | chosen) = 0.1, P(same | chosen) = 0.1;
        label = id where chosen, else −100
    Source:
        Devlin et al. 2018, BERT, section 3.1 and appendix A.1

    Args:
        ids: the token ids of a text.
        generator: the source of randomness.
        mask_id: the id of [MASK].
        vocab_size: random ids are below it.
        protected: ids that are never chosen and never inserted.
        rate: the probability that another token is chosen, from 0 to 1.

    Returns:
        The inputs, and the label of each token.

    Raises:
        ValueError: the rate is out of range, or all ids of the vocabulary are protected.

    >>> import numpy as np; from clearhead.data.augmentation import mask_tokens
    >>> ids, generator = np.array([1, 7, 8, 2]), np.random.default_rng(2)
    >>> mask_tokens(ids, generator, mask_id=3, vocab_size=9, protected=[1, 2], rate=1.0)
    (array([1, 3, 3, 2]), array([-100,    7,    8, -100]))
    """
    _check_rate(rate)
    chosen = _unprotected(ids, protected) & (generator.random(len(ids)) < rate)
    kind = generator.random(len(ids))
    inputs = ids.copy()
    inputs[chosen & (kind < 0.8)] = mask_id
    _insert_random(inputs, chosen & (kind >= 0.8) & (kind < 0.9), generator, vocab_size, protected)
    return inputs, np.where(chosen, ids, IGNORED).astype(np.int64)


def token_masking(
    ids: Ids, generator: np.random.Generator, *, mask_id: int, rate: float, protected: Collection[int] = ()
) -> Ids:
    """Replace each token by the mask with probability `rate`.

    Source:
        Lewis et al. 2019, BART, section 2.2

    Args:
        ids: the token ids of a text.
        generator: the source of randomness.
        mask_id: the id of the mask.
        rate: the probability, from 0 to 1.
        protected: ids that are never changed.

    Raises:
        ValueError: the rate is out of range.

    >>> import numpy as np; from clearhead.data.augmentation import token_masking
    >>> token_masking(np.array([1, 7, 8, 2]), np.random.default_rng(0), mask_id=3, rate=1.0, protected=[1, 2])
    array([1, 3, 3, 2])
    """
    _check_rate(rate)
    changed = ids.copy()
    changed[_unprotected(ids, protected) & (generator.random(len(ids)) < rate)] = mask_id
    return changed


def span_masking(
    ids: Ids, generator: np.random.Generator, *, mask_id: int, rate: float, protected: Collection[int] = ()
) -> Ids:
    """Replace spans of tokens by masks, one for each token, until a share `rate` of all tokens is masked.

    A span starts at any unmasked token. It ends early at a protected token, at another span, at the end of the text,
    and when the share is reached. A share that is not a whole number of tokens is rounded up or down at random, so that
    it holds on average.

    Equation:
        P(length = ℓ) = (1 − 1/3)^(ℓ−1) · 1/3, of mean 3
    Source:
        Joshi et al. 2019, SpanBERT, section 3.1, there with a mean of 3.8 and at most 10

    Args:
        ids: the token ids of a text.
        generator: the source of randomness.
        mask_id: the id of the mask.
        rate: the share of masked tokens, from 0 to 1.
        protected: ids that are never changed.

    Raises:
        ValueError: the rate is out of range.

    >>> import numpy as np; from clearhead.data.augmentation import span_masking
    >>> span_masking(np.arange(4, 14), np.random.default_rng(4), mask_id=3, rate=0.4)
    array([ 4,  5,  6,  3,  3,  9, 10, 11,  3,  3])
    """
    _check_rate(rate)
    left = _unprotected(ids, protected)
    budget = int(rate * int(left.sum()) + generator.random())
    changed = ids.copy()
    while budget > 0:
        start = int(generator.choice(np.flatnonzero(left)))
        end = min(start + int(generator.geometric(1 / _MEAN_SPAN)), start + budget, len(ids))
        closed = np.flatnonzero(~left[start:end])
        end = start + int(closed[0]) if len(closed) else end
        changed[start:end] = mask_id
        left[start:end] = False
        budget -= end - start
    return changed


def token_replacement(
    ids: Ids, generator: np.random.Generator, *, vocab_size: int, rate: float, protected: Collection[int] = ()
) -> Ids:
    """Replace each token by a random one with probability `rate`.

    The new token is drawn from the whole vocabulary, which includes the old one.

    Source:
        Xie et al. 2017, Data Noising as Smoothing in Neural Network Language Models, section 3.1 (unigram noise, there
        drawn by frequency)

    Args:
        ids: the token ids of a text.
        generator: the source of randomness.
        vocab_size: random ids are below it.
        rate: the probability, from 0 to 1.
        protected: ids that are never changed and never inserted.

    Raises:
        ValueError: the rate is out of range, or all ids of the vocabulary are protected.

    >>> import numpy as np; from clearhead.data.augmentation import token_replacement
    >>> token_replacement(np.array([1, 7, 8, 2]), np.random.default_rng(0), vocab_size=4, rate=1.0, protected=[0, 1, 2])
    array([1, 3, 3, 2])
    """
    _check_rate(rate)
    changed = ids.copy()
    _insert_random(
        changed, _unprotected(ids, protected) & (generator.random(len(ids)) < rate), generator, vocab_size, protected
    )
    return changed


def token_deletion(
    ids: Ids, generator: np.random.Generator, *, rate: float, protected: Collection[int] = ()
) -> Int[np.ndarray, " kept"]:
    """Delete each token with probability `rate`; if no token would remain, one random token is kept.

    Source:
        Wei & Zou 2019, EDA, section 2 (random deletion)

    Args:
        ids: the token ids of a text.
        generator: the source of randomness.
        rate: the probability, from 0 to 1.
        protected: ids that are never changed.

    Raises:
        ValueError: the rate is out of range.

    >>> import numpy as np; from clearhead.data.augmentation import token_deletion
    >>> token_deletion(np.array([1, 7, 8, 2]), np.random.default_rng(0), rate=1.0, protected=[1, 2])
    array([1, 8, 2])
    """
    _check_rate(rate)
    free = _unprotected(ids, protected)
    deleted = free & (generator.random(len(ids)) < rate)
    survivor = generator.random()  # always drawn, so that later draws do not depend on the result
    if free.any() and deleted.sum() == free.sum():
        indices = np.flatnonzero(free)
        deleted[indices[int(survivor * len(indices))]] = False
    return ids[~deleted]


def token_swapping(ids: Ids, generator: np.random.Generator, *, rate: float, protected: Collection[int] = ()) -> Ids:
    """Swap pairs of adjacent tokens with probability `rate`.

    The pairs start at the first or the second token, at random. So each token with unprotected neighbors moves by one
    position with this probability.

    Source:
        Artetxe et al. 2018, Unsupervised Neural Machine Translation, section 3.1 (swaps of neighboring words)

    Args:
        ids: the token ids of a text.
        generator: the source of randomness.
        rate: the probability, from 0 to 1.
        protected: ids that never move.

    Raises:
        ValueError: the rate is out of range.

    >>> import numpy as np; from clearhead.data.augmentation import token_swapping
    >>> token_swapping(np.array([1, 7, 8, 9, 2]), np.random.default_rng(0), rate=1.0, protected=[1, 2])
    array([1, 8, 7, 9, 2])
    """
    _check_rate(rate)
    free = _unprotected(ids, protected)
    first = np.arange(int(generator.integers(2)), len(ids) - 1, 2)
    swapped = first[free[first] & free[first + 1] & (generator.random(len(first)) < rate)]
    changed = ids.copy()
    changed[swapped], changed[swapped + 1] = ids[swapped + 1], ids[swapped]
    return changed


def local_shuffle(ids: Ids, generator: np.random.Generator, *, distance: int, protected: Collection[int] = ()) -> Ids:
    """Move each token by at most `distance` positions; protected tokens stay, and no token crosses them.

    Equation:
        order = argsort_i (i + u_i), u_i ~ U(0, k + 1)
    Source:
        Lample et al. 2018, Unsupervised Machine Translation Using Monolingual Corpora Only, section 2.3

    Args:
        ids: the token ids of a text.
        generator: the source of randomness.
        distance: k.
        protected: ids that never move.

    Raises:
        ValueError: the distance is below 0.

    >>> import numpy as np; from clearhead.data.augmentation import local_shuffle
    >>> local_shuffle(np.array([1, 6, 7, 8, 9, 2]), np.random.default_rng(1), distance=1, protected=[1, 2])
    array([1, 7, 6, 9, 8, 2])
    """
    if distance < 0:
        raise ValueError(f"distance must be at least 0; got {distance}")
    fixed = ~_unprotected(ids, protected)
    runs = 2 * np.cumsum(fixed) - fixed  # numbers the protected tokens, and the runs between them
    return ids[np.lexsort((np.arange(len(ids)) + generator.uniform(0, distance + 1, len(ids)), runs))]


_MEAN_SPAN = 3


def _unprotected(ids: Ids, protected: Collection[int]) -> Bool[np.ndarray, " L"]:
    """Return which tokens may change."""
    return np.isin(ids, np.array(list(protected), dtype=np.int64), invert=True)


def _insert_random(
    ids: Ids,
    chosen: Bool[np.ndarray, " L"],
    generator: np.random.Generator,
    vocab_size: int,
    protected: Collection[int],
) -> None:
    excluded = np.unique([number for number in protected if 0 <= number < vocab_size]).astype(np.int64)
    if len(excluded) >= vocab_size:
        raise ValueError(f"all {vocab_size} ids of the vocabulary are protected; no random id is left")
    drawn = generator.integers(vocab_size - len(excluded), size=len(ids))
    # the n-th unprotected id: n, plus one for each protected id up to it
    ids[chosen] = (drawn + np.searchsorted(excluded - np.arange(len(excluded)), drawn, side="right"))[chosen]


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be from 0 to 1; got {rate}")
