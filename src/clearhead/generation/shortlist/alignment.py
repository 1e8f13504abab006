"""Word alignment: how probable each target token is as the translation of a source token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

_ITERATIONS = 5


@dataclass(frozen=True)
class TranslationTable:
    """Probabilities t(target | source) of the pairs of tokens that occur together.

    Args:
        source_P, target_P: the tokens of each pair, sorted.
        probability_P: probability of the target token, given the source token.
    """

    source_P: Int[np.ndarray, "P"]
    target_P: Int[np.ndarray, "P"]
    probability_P: Float[np.ndarray, "P"]


def translation_table(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], target_size: int
) -> TranslationTable:
    """Estimate a translation table from pairs of sentences.

    Equation: t(f | e) ∝ Σ_pairs Σ_j δ(f, f_j) t(f_j | e) / Σ_i t(f_j | e_i), iterated
    Source: Brown et al. 1993, "The Mathematics of Statistical Machine Translation", Section 4.4: IBM Model 1, without
        its empty source word, because every source sentence has an end token

    Args:
        sources: source tokens of each pair.
        targets: target tokens of each pair.
        target_size: number of target tokens.

    >>> table = translation_table([[1, 2], [1]], [[5, 6], [5]], target_size=7)
    >>> [round(float(p), 2) for p in table.probability_P]
    [0.96, 0.04, 0.17, 0.83]
    """
    words = [np.unique(source) for source in sources]
    # a link is a pair of a target position and a source token of the same sentence
    links = [np.repeat(np.asarray(target), len(own)) for own, target in zip(words, targets, strict=True)]
    linked_L = np.concatenate([np.tile(own, len(target)) for own, target in zip(words, targets, strict=True)])
    keys_P, pair_L = np.unique(linked_L * target_size + np.concatenate(links), return_inverse=True)
    widths = np.concatenate([np.full(len(target), len(own)) for own, target in zip(words, targets, strict=True)])
    position_L = np.repeat(np.arange(len(widths)), widths)
    source_P, target_P = keys_P // target_size, keys_P % target_size
    probability_P = np.ones(len(keys_P))
    for _ in range(_ITERATIONS):
        posterior_L = probability_P[pair_L]
        posterior_L /= np.bincount(position_L, posterior_L)[position_L]
        count_P = np.bincount(pair_L, posterior_L)
        probability_P = count_P / np.bincount(source_P, count_P)[source_P]
    return TranslationTable(source_P, target_P, probability_P)
