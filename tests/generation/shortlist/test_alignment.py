"""Translation tables: IBM Model 1 against the sums of its definition, and on pairs whose alignment is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.generation.shortlist.alignment import translation_table

TOKENS = 6
SENTENCES = st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=5)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=6)


def brown(pairs, iterations=5):
    """The expected counts of Brown et al., pair by pair, over the distinct source tokens of each sentence."""
    table = np.ones((TOKENS, TOKENS))
    for _ in range(iterations):
        counts = np.zeros((TOKENS, TOKENS))
        for source, target in pairs:
            words = sorted(set(source))
            for token in target:
                counts[words, token] += table[words, token] / table[words, token].sum()
        totals = counts.sum(axis=1, keepdims=True)
        table = counts / np.where(totals, totals, 1)
    return table


@given(pairs=PAIRS)
def test_table_is_that_of_the_definition(pairs):
    table = translation_table([source for source, _ in pairs], [target for _, target in pairs], TOKENS)
    dense = np.zeros((TOKENS, TOKENS))
    dense[table.source_P, table.target_P] = table.probability_P
    np.testing.assert_allclose(dense, brown(pairs), atol=1e-12)


def test_words_that_occur_together_by_chance_are_told_apart():
    house, the, book = 0, 1, 2
    pairs = [([the, house], [4, 3]), ([the, book], [4, 5]), ([house], [3])]
    table = translation_table([source for source, _ in pairs], [target for _, target in pairs], TOKENS)
    best = {}
    for source, target, probability in zip(table.source_P, table.target_P, table.probability_P, strict=True):
        best[int(source)] = max(best.get(int(source), (0, 0)), (float(probability), int(target)))
    assert {source: target for source, (_, target) in best.items()} == {house: 3, the: 4, book: 5}
    assert best[house][0] == pytest.approx(1, abs=0.1)
