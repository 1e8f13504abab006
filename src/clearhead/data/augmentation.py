"""Token ids, changed at random: noise that a model learns to see through.

Every function is pure: the ids stay as they are, and all chance comes from the generator that is given. Protected ids,
such as those that start or end a text, are never changed, moved, removed or put in.
"""

from collections.abc import Collection

import numpy as np
from jaxtyping import Bool, Int, Int64

Ids = Int[np.ndarray, " L"]

IGNORED = -100
"""The label of a token that no loss looks at, as torch.nn.functional.cross_entropy has it."""


def mask_tokens(
    ids: Ids,
    generator: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
    protected: Collection[int] = (),
    rate: float = 0.15,
) -> tuple[Ids, Int64[np.ndarray, " L"]]:
    """Input and labels of the masked language model.

    Equation:
        P(chosen) = rate; P(mask | chosen) = 0.8, P(random | chosen) = 0.1, P(same | chosen) = 0.1;
        label = id where chosen, else −100
    Source:
        Devlin et al. 2018, BERT, section 3.1 and appendix A.1

    Args:
        ids: the text.
        generator: where chance comes from.
        mask_id: the id of [MASK].
        vocab_size: random tokens are below it.
        protected: ids that are never chosen and never put in.
        rate: the share of the other tokens that is chosen, from 0 to 1.

    Returns:
        The input, and the label of each token.

    Raises:
        ValueError: a rate that is none, or a vocabulary of which nothing but protected ids is left.

    >>> import numpy as np; from clearhead.data.augmentation import mask_tokens
    >>> ids, generator = np.array([1, 7, 8, 2]), np.random.default_rng(2)
    >>> mask_tokens(ids, generator, mask_id=3, vocab_size=9, protected=[1, 2], rate=1.0)
    (array([1, 3, 3, 2]), array([-100,    7,    8, -100]))
    """
    _check_rate(rate)
    chosen = _open(ids, protected) & (generator.random(len(ids)) < rate)
    kind = generator.random(len(ids))
    inputs = ids.copy()
    inputs[chosen & (kind < 0.8)] = mask_id
    _put_random(inputs, chosen & (kind >= 0.8) & (kind < 0.9), generator, vocab_size, protected)
    return inputs, np.where(chosen, ids, IGNORED).astype(np.int64)


def token_masking(
    ids: Ids, generator: np.random.Generator, *, mask_id: int, rate: float, protected: Collection[int] = ()
) -> Ids:
    """Each token becomes the mask with probability `rate`.

    Source:
        Lewis et al. 2019, BART, section 2.2

    Args:
        ids: the text.
        generator: where chance comes from.
        mask_id: what is put in.
        rate: from 0 to 1.
        protected: ids that stay.

    Raises:
        ValueError: a rate that is none.

    >>> import numpy as np; from clearhead.data.augmentation import token_masking
    >>> token_masking(np.array([1, 7, 8, 2]), np.random.default_rng(0), mask_id=3, rate=1.0, protected=[1, 2])
    array([1, 3, 3, 2])
    """
    _check_rate(rate)
    changed = ids.copy()
    changed[_open(ids, protected) & (generator.random(len(ids)) < rate)] = mask_id
    return changed


def span_masking(
    ids: Ids, generator: np.random.Generator, *, mask_id: int, rate: float, protected: Collection[int] = ()
) -> Ids:
    """Spans of tokens become masks, token by token, until a share `rate` of all is masked.

    A span starts at any token that is left. It ends early at a protected token, at another span, at the end of the
    text, and where the share is reached; a share that is no whole number of tokens is rounded by chance, so that it is
    kept on average.

    Equation:
        P(length = ℓ) = (1 − 1/3)^(ℓ−1) · 1/3, of mean 3
    Source:
        Joshi et al. 2019, SpanBERT, section 3.1, there with a mean of 3.8 and at most 10

    Args:
        ids: the text.
        generator: where chance comes from.
        mask_id: what is put in.
        rate: from 0 to 1.
        protected: ids that stay.

    Raises:
        ValueError: a rate that is none.

    >>> import numpy as np; from clearhead.data.augmentation import span_masking
    >>> span_masking(np.arange(4, 14), np.random.default_rng(4), mask_id=3, rate=0.4)
    array([ 4,  5,  6,  3,  3,  9, 10, 11,  3,  3])
    """
    _check_rate(rate)
    left = _open(ids, protected)
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
    """Each token becomes, with probability `rate`, one drawn from the whole vocabulary, perhaps the same again.

    Source:
        Xie et al. 2017, Data Noising as Smoothing in Neural Network Language Models, section 3.1 (unigram noise, there
        drawn by frequency)

    Args:
        ids: the text.
        generator: where chance comes from.
        vocab_size: drawn tokens are below it.
        rate: from 0 to 1.
        protected: ids that stay, and are not drawn.

    Raises:
        ValueError: a rate that is none, or a vocabulary of which nothing but protected ids is left.

    >>> import numpy as np; from clearhead.data.augmentation import token_replacement
    >>> token_replacement(np.array([1, 7, 8, 2]), np.random.default_rng(0), vocab_size=4, rate=1.0, protected=[0, 1, 2])
    array([1, 3, 3, 2])
    """
    _check_rate(rate)
    changed = ids.copy()
    _put_random(changed, _open(ids, protected) & (generator.random(len(ids)) < rate), generator, vocab_size, protected)
    return changed


def token_deletion(
    ids: Ids, generator: np.random.Generator, *, rate: float, protected: Collection[int] = ()
) -> Int[np.ndarray, " kept"]:
    """Each token is left out with probability `rate`; where none would be left, one stays that is drawn by chance.

    Source:
        Wei & Zou 2019, EDA, section 2 (random deletion)

    Args:
        ids: the text.
        generator: where chance comes from.
        rate: from 0 to 1.
        protected: ids that stay.

    Raises:
        ValueError: a rate that is none.

    >>> import numpy as np; from clearhead.data.augmentation import token_deletion
    >>> token_deletion(np.array([1, 7, 8, 2]), np.random.default_rng(0), rate=1.0, protected=[1, 2])
    array([1, 8, 2])
    """
    _check_rate(rate)
    free = _open(ids, protected)
    gone = free & (generator.random(len(ids)) < rate)
    survivor = generator.random()  # drawn always, so that the next draws do not depend on what was left
    if free.any() and gone.sum() == free.sum():
        places = np.flatnonzero(free)
        gone[places[int(survivor * len(places))]] = False
    return ids[~gone]


def token_swapping(ids: Ids, generator: np.random.Generator, *, rate: float, protected: Collection[int] = ()) -> Ids:
    """The text is parted into pairs of neighbours, from its first or its second token; each pair is exchanged with
    probability `rate`.

    So each token that has unprotected neighbours moves with that probability, by one place.

    Source:
        Artetxe et al. 2018, Unsupervised Neural Machine Translation, section 3.1 (swaps of neighbouring words)

    Args:
        ids: the text.
        generator: where chance comes from.
        rate: from 0 to 1.
        protected: ids that stay where they are.

    Raises:
        ValueError: a rate that is none.

    >>> import numpy as np; from clearhead.data.augmentation import token_swapping
    >>> token_swapping(np.array([1, 7, 8, 9, 2]), np.random.default_rng(0), rate=1.0, protected=[1, 2])
    array([1, 8, 7, 9, 2])
    """
    _check_rate(rate)
    free = _open(ids, protected)
    first = np.arange(int(generator.integers(2)), len(ids) - 1, 2)
    swapped = first[free[first] & free[first + 1] & (generator.random(len(first)) < rate)]
    changed = ids.copy()
    changed[swapped], changed[swapped + 1] = ids[swapped + 1], ids[swapped]
    return changed


def local_shuffle(ids: Ids, generator: np.random.Generator, *, distance: int, protected: Collection[int] = ()) -> Ids:
    """Each token moves by `distance` places at most; protected ones stay, and none passes them.

    Equation:
        order = argsort_i (i + u_i), u_i ~ U(0, k + 1)
    Source:
        Lample et al. 2018, Unsupervised Machine Translation Using Monolingual Corpora Only, section 2.3

    Args:
        ids: the text.
        generator: where chance comes from.
        distance: k.
        protected: ids that stay where they are.

    Raises:
        ValueError: a distance below 0.

    >>> import numpy as np; from clearhead.data.augmentation import local_shuffle
    >>> local_shuffle(np.array([1, 6, 7, 8, 9, 2]), np.random.default_rng(1), distance=1, protected=[1, 2])
    array([1, 7, 6, 9, 8, 2])
    """
    if distance < 0:
        raise ValueError(f"distance must be at least 0; got {distance}")
    closed = ~_open(ids, protected)
    runs = 2 * np.cumsum(closed) - closed  # a number for what stands between two protected tokens, one for each of them
    return ids[np.lexsort((np.arange(len(ids)) + generator.uniform(0, distance + 1, len(ids)), runs))]


_MEAN_SPAN = 3


def _open(ids: Ids, protected: Collection[int]) -> Bool[np.ndarray, " L"]:
    """Which tokens may change."""
    return np.isin(ids, np.array(list(protected), dtype=np.int64), invert=True)


def _put_random(
    ids: Ids,
    places: Bool[np.ndarray, " L"],
    generator: np.random.Generator,
    vocab_size: int,
    protected: Collection[int],
) -> None:
    closed = np.unique([one for one in protected if 0 <= one < vocab_size]).astype(np.int64)
    if len(closed) >= vocab_size:
        raise ValueError(f"of the vocabulary of {vocab_size} ids all are protected; there is none to draw")
    drawn = generator.integers(vocab_size - len(closed), size=len(ids))
    # the n-th of the ids that are not protected: beyond each protected one, those that follow count from one later
    ids[places] = (drawn + np.searchsorted(closed - np.arange(len(closed)), drawn, side="right"))[places]


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is a share from 0 to 1; got {rate}")
