"""Disentangled attention: buckets equal transformers', and scores equal the equation written with loops."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from clearhead import masks
from clearhead.equations.distances import distance_index, distance_scores, log_buckets
from clearhead.layers.disentangled_attention import (
    ConvolutionalResidual,
    ConvolutionOptions,
    DisentangledAttention,
    DistanceEmbedding,
    DistanceOptions,
)


@given(buckets=st.integers(2, 300), more=st.integers(2, 600), length=st.integers(1, 600))
@settings(max_examples=25)
def test_buckets_equal_transformers(buckets, more, length):
    distance = torch.arange(-length, length + 1)
    farthest = buckets // 2 + more
    expected = make_log_bucket_position(distance, buckets, farthest).long()
    assert torch.equal(log_buckets(distance, buckets, farthest), expected)


def test_index_is_limited_on_both_sides():
    index = distance_index(9, 3)
    for i in range(9):
        for j in range(9):
            assert index[i, j] == min(max(i - j + 3, 0), 5)


@given(terms=st.sampled_from(["c2p", "p2c", "both"]), seed=st.integers(0, 2**16))
@settings(max_examples=10)
def test_scores_equal_the_equation_with_loops(terms, seed):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 2, 3, 5, 4).unbind()
    distance_q, distance_k = torch.randn(2, 1, 3, 6, 4).unbind()
    index = distance_index(5, 3)
    scores = distance_scores(
        q, k, distance_q if terms != "c2p" else None, distance_k if terms != "p2c" else None, index
    )
    for i in range(5):
        for j in range(5):
            expected = torch.zeros(2, 3)
            if terms != "p2c":
                expected += (q[:, :, i] * distance_k[:, :, index[i, j]]).sum(-1)
            if terms != "c2p":
                expected += (k[:, :, j] * distance_q[:, :, index[i, j]]).sum(-1)
            torch.testing.assert_close(scores[:, :, i, j], expected, atol=1e-5, rtol=1e-5)


@given(length=st.integers(0, 40), buckets=st.integers(1, 9), limit=st.sampled_from([None, 12]))
@settings(max_examples=25)
def test_short_texts_use_only_the_rows_that_occur(length, buckets, limit):
    options = DistanceOptions(buckets=buckets + (limit is not None), max_distance=limit)
    table = DistanceEmbedding(4, options, eps=1e-7, drop_prob=0.0)
    distances = table(length)
    whole = distance_index(length, options.buckets, max_distance=limit)
    assert torch.equal(distances.vectors[distances.index], table.weight[whole])
    if length:
        assert distances.vectors.shape[0] <= 2 * length


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), causal=st.booleans(), seed=st.integers(0, 2**16))
@settings(max_examples=10)
def test_packed_texts_equal_single_ones(lengths, causal, seed):
    torch.manual_seed(seed)
    options = DistanceOptions(buckets=4, shared=bool(seed % 2))
    table, attention = DistanceEmbedding(8, options, eps=1e-7, drop_prob=0.0), DisentangledAttention(8, 2, options)
    convolution = ConvolutionalResidual(8, ConvolutionOptions(width=3), eps=1e-7, drop_prob=0.0)
    texts = [torch.randn(1, length, 8) for length in lengths]
    packed = masks.packed(lengths)
    whole = attention(
        torch.cat(texts, 1), packed & masks.causal(sum(lengths)) if causal else packed, table(max(lengths))
    )
    alone = [attention(text, masks.causal(text.shape[1]) if causal else None, table(text.shape[1])) for text in texts]
    torch.testing.assert_close(whole, torch.cat(alone, 1), atol=1e-5, rtol=1e-5)
    x = torch.cat(texts, 1)
    alone = [convolution(text, text) for text in texts]
    torch.testing.assert_close(convolution(x, x, packed), torch.cat(alone, 1), atol=1e-5, rtol=1e-5)
