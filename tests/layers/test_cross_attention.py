"""Cross-attention and the decoder's caches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import (
    CrossAttention,
    CrossAttentionCache,
    DecoderCache,
    MultiHeadAttention,
    SelfAttentionCache,
    masks,
)
from clearhead.equations import attention

seeds = st.integers(0, 2**16)
OPTIONS = [{}, {"head_dim": 5}, {"scale": 1.0}, {"bias": False}]


def explicit(layer, x, memory, mask=None):
    """Compute cross-attention by the equations, from the weights of a layer."""
    weight_k, weight_v = layer.kv.weight.chunk(2)
    bias_k, bias_v = (None, None) if layer.kv.bias is None else layer.kv.bias.chunk(2)
    q = attention.split_heads(attention.project(x, layer.q.weight, layer.q.bias), layer.num_heads)
    k = attention.split_heads(attention.project(memory, weight_k, bias_k), layer.num_heads)
    v = attention.split_heads(attention.project(memory, weight_v, bias_v), layer.num_heads)
    values, _ = attention.scaled_dot_product(q, k, v, mask, scale=layer.scale)
    return attention.output(attention.merge_heads(values), layer.out.weight, layer.out.bias)


def build(kind, **options):
    layer = kind(8, 2, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.eval()


@given(seeds, st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.sampled_from(OPTIONS), st.integers(0, 4))
def test_cross_attention_equals_its_equation(seed, batch, length, keys, options, kind):
    torch.manual_seed(seed)
    layer = build(CrossAttention, **options)
    x, memory = torch.randn(batch, length, 8), torch.randn(batch, keys, 8)
    mask = [
        None,
        masks.padding(torch.rand(batch, keys) < 0.5),
        torch.rand(length, keys) < 0.5,
        torch.randn(batch, 2, length, keys),
        masks.padding(torch.rand(batch, keys) < 0.5) & masks.Mask(length=keys, bias=torch.randn(length, keys)),
    ][kind]
    torch.testing.assert_close(layer(x, memory, mask), explicit(layer, x, memory, mask), atol=1e-5, rtol=1e-5)


@given(seeds, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans())
def test_rows_that_share_a_memory_equal_a_repeated_memory(seed, batch, each, length, padded, cached):
    torch.manual_seed(seed)
    layer = build(CrossAttention)
    x, memory = torch.randn(batch * each, length, 8), torch.randn(batch, 5, 8)
    keep = torch.rand(batch, 5) < 0.6
    mask = masks.padding(keep) if padded else None
    repeated = masks.padding(keep.repeat_interleave(each, dim=0)) if padded else None
    expected = layer(x, memory.repeat_interleave(each, dim=0), repeated)
    cache = CrossAttentionCache() if cached else None
    torch.testing.assert_close(layer(x, memory, mask, cache), expected, atol=1e-5, rtol=1e-5)


def test_mismatched_inputs_are_errors():
    layer = build(CrossAttention)
    memory = torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match="3 rows attend to a memory of 2"):
        layer(torch.randn(3, 1, 8), memory)
    with pytest.raises(ValueError, match="rows attend to a memory of 0"):
        layer(torch.randn(3, 1, 8), memory[:0])
    with pytest.raises(ValueError, match="2 rows share each row.*padding alone"):
        layer(torch.randn(4, 1, 8), memory, torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="made for 4 keys"):
        layer(torch.randn(2, 1, 8), memory, masks.causal(4))
    with pytest.raises(ValueError, match="divisible"):
        CrossAttention(8, 3)


def test_cross_attention_cache_computes_once_and_reorders():
    layer, calls = build(CrossAttention), []
    layer.kv.register_forward_hook(lambda *_: calls.append(1))
    x, memory, cache = torch.randn(3, 4, 8), torch.randn(3, 5, 8), CrossAttentionCache()
    assert cache.length == 0
    steps = [layer(x[:, position : position + 1], memory, None, cache) for position in range(4)]
    assert len(calls) == 1
    assert cache.length == 5
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x, memory), atol=1e-5, rtol=1e-5)
    order = torch.tensor([2, 0])
    cache.reorder(order)
    torch.testing.assert_close(layer(x[order], memory[order], None, cache), layer(x, memory)[order])
    CrossAttentionCache().reorder(order)  # no effect on an empty cache


@given(
    seeds,
    st.integers(1, 3),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from([*OPTIONS, {"rotary_theta": 100.0}]),
    st.booleans(),
)
def test_cached_self_attention_in_chunks_equals_one_pass(seed, batch, chunks, options, padded):
    torch.manual_seed(seed)
    layer, length = build(MultiHeadAttention, **options), sum(chunks)
    x, cache = torch.randn(batch, length, 8), SelfAttentionCache()
    keep = torch.rand(batch, length) < 0.7 if padded else torch.ones(batch, length, dtype=torch.bool)
    result = []
    for chunk in chunks:
        stop = cache.length + chunk
        mask = masks.causal(stop) & masks.padding(keep[:, :stop])
        result.append(layer(x[:, cache.length : stop], mask, cache))
    assert cache.length == length
    whole = layer(x, masks.causal(length) & masks.padding(keep))
    torch.testing.assert_close(torch.cat(result, dim=1), whole, atol=1e-5, rtol=1e-5)


def test_self_attention_cache_reorders_and_checks_the_batch_size():
    layer, cache = build(MultiHeadAttention), SelfAttentionCache()
    x = torch.randn(3, 4, 8)
    layer(x[:, :3], masks.causal(3), cache)
    order = torch.tensor([2, 0, 0, 1])
    cache.reorder(order)
    result = layer(x[order, 3:], masks.causal(4), cache)
    torch.testing.assert_close(result, layer(x[order], masks.causal(4))[:, 3:], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="holds 4 rows, but the step has 2"):
        layer(x[:2, 3:], masks.causal(5), cache)


def test_decoder_cache_reorders_every_layer():
    cache = DecoderCache(2)
    k = torch.arange(3.0).reshape(3, 1, 1, 1)
    for layer in cache.layers:
        layer.attention.append(k, -k)
        layer.cross_attention.get_or_compute(lambda: (k * 10, k * 20))
    assert cache.length == 1
    cache.reorder(torch.tensor([2, 1]))
    cache.reorder(torch.tensor([1, 0]), torch.tensor([0]))
    for layer in cache.layers:
        assert layer.attention.keys.flatten().tolist() == [1, 2]
        assert layer.attention.values.flatten().tolist() == [-1, -2]
        keys, _ = layer.cross_attention.get_or_compute(lambda: (None, None))
        assert keys.flatten().tolist() == [0]
