"""Each logits processor equals that of transformers, for any scores and tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

from clearhead.generation.logits_processors import (
    ExcludedTokens,
    forbid_repeated_ngrams,
    forbid_source_ngrams,
    forbid_words,
    force_tokens,
    penalize_repetition,
    warp_logits,
)

VOCABULARY = 9


@st.composite
def cases(draw):
    """(scores, target ids, source ids)"""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    scores = torch.randn(rows, VOCABULARY, generator=generator) * 3
    ids = torch.randint(VOCABULARY, (rows, length), generator=generator)
    return scores, ids, torch.randint(VOCABULARY, (rows, draw(st.integers(1, 9))), generator=generator)


def same(ours, expected):
    torch.testing.assert_close(ours, expected)


@given(cases(), st.sampled_from([0.5, 1.2, 3.0]))
def test_penalize_repetition(case, penalty):
    scores, ids, _ = case
    before = scores.clone()
    same(
        penalize_repetition(scores, ids, penalty=penalty), theirs.RepetitionPenaltyLogitsProcessor(penalty)(ids, scores)
    )
    assert torch.equal(scores, before)


@given(cases(), st.integers(1, 4))
def test_forbid_repeated_ngrams(case, size):
    scores, ids, _ = case
    same(forbid_repeated_ngrams(scores, ids, size=size), theirs.NoRepeatNGramLogitsProcessor(size)(ids, scores))


@given(cases(), st.integers(1, 4))
def test_forbid_source_ngrams(case, size):
    scores, ids, source = case
    expected = theirs.EncoderNoRepeatNGramLogitsProcessor(size, source)(ids, scores)
    same(forbid_source_ngrams(scores, ids, source, size=size), expected)


@given(cases(), st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3), min_size=1, max_size=4))
def test_forbid_words(case, words):
    scores, ids, _ = case
    expected = theirs.NoBadWordsLogitsProcessor(words)(ids, scores)
    same(forbid_words(scores, ids, words=[tuple(word) for word in words]), expected)


@given(cases(), st.integers(0, 10))
def test_forbid_early_end(case, least):
    scores, ids, _ = case
    expected = theirs.MinLengthLogitsProcessor(least, [2, 5])(ids, scores)
    same(ExcludedTokens((2, 5), least)(scores, ids, ids), expected)


@given(cases())
def test_force_tokens(case):
    scores, ids, _ = case
    same(force_tokens(scores, ids, position=1, allowed=[3]), theirs.ForcedBOSTokenLogitsProcessor(3)(ids, scores))
    same(
        force_tokens(scores, ids, position=4, allowed=[3, 5]),
        theirs.ForcedEOSTokenLogitsProcessor(5, [3, 5])(ids, scores),
    )


@given(cases(), st.sampled_from([0.3, 1.0, 2.5]), st.integers(0, 12), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_warp_logits(case, temperature, top_k, top_p):
    scores, ids, _ = case
    expected = theirs.TemperatureLogitsWarper(temperature)(ids, scores)
    if top_k:
        expected = theirs.TopKLogitsWarper(top_k)(ids, expected)
    if top_p < 1:
        expected = theirs.TopPLogitsWarper(top_p)(ids, expected)
    same(warp_logits(scores, temperature=temperature, top_k=top_k, top_p=top_p), expected)


@pytest.mark.parametrize("size", [1, 3])
def test_only_completing_tokens_are_forbidden(size):
    ids = torch.tensor([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]])
    scores = forbid_repeated_ngrams(torch.zeros(2, VOCABULARY), ids, size=size)
    banned = [set((row == float("-inf")).nonzero()[:, 0].tolist()) for row in scores]
    assert banned == ([{1, 2, 3}, {4}] if size == 1 else [{3}, {4}])
