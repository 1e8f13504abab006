"""T3: the encoder-decoder document; here the rows that concern the encoder."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clearhead import EncoderLayer, LayerNorm, PositionalEncoding, PositionwiseFeedForward, TokenEmbedding

seeds = st.integers(0, 2**16)
WORDS = {word: number for number, word in enumerate(["hello", "world", "this", "is", "a", "test"])}


def test_t3_1_positional_encoding():
    layer = PositionalEncoding(512)
    assert layer.pe.shape == (5000, 512)
    assert not layer.pe.requires_grad
    assert not list(layer.parameters())
    assert PositionalEncoding(7, max_len=9)(torch.zeros(1, 9, 7)).shape == (1, 9, 7)


def test_t3_5_embedding_and_layer_norm_give_the_printed_numbers():
    torch.manual_seed(42)
    x = TokenEmbedding(6, 8)(torch.tensor([WORDS[word] for word in WORDS]))
    before = torch.tensor([1.9269, 1.4873, 0.9007, -2.1055, 0.6784, -1.2345, -0.0431, -1.6047])
    after = torch.tensor([1.3737, 1.0601, 0.6418, -1.5020, 0.4833, -0.8809, -0.0312, -1.1448])
    torch.testing.assert_close(x[0], before, atol=5e-5, rtol=0)
    torch.testing.assert_close(LayerNorm(8)(x)[0], after, atol=5e-5, rtol=0)
    # the other words, through torch.nn's own modules
    torch.manual_seed(42)
    theirs = nn.LayerNorm(8)(nn.Embedding(6, 8)(torch.arange(6)))
    torch.testing.assert_close(LayerNorm(8)(x), theirs)


def test_t3_6_feedforward_gives_the_printed_numbers():
    torch.manual_seed(42)
    LayerNorm(8)(TokenEmbedding(6, 8)(torch.arange(6)))
    feedforward = PositionwiseFeedForward(512, 2048, 0.1)
    assert feedforward(torch.rand(2, 10, 512)).shape == (2, 10, 512)
    x = TokenEmbedding(6, 512)(torch.arange(6))
    torch.testing.assert_close(x[0, :3], torch.tensor([0.4575, 0.9477, 1.7342]), atol=5e-5, rtol=0)
    y = feedforward(x)
    torch.testing.assert_close(y[0, :3], torch.tensor([-0.0936, 0.1393, -0.1026]), atol=5e-5, rtol=0)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_t3_7_both_norm_orders(norm_order):
    layer = EncoderLayer(16, 32, 4, 0.0, norm_order=norm_order)
    x = torch.randn(2, 5, 16)
    first, second = layer.attention_residual.norm, layer.feedforward_residual.norm
    if norm_order == "post":
        z1 = first(x + layer.attention(x))
        expected = second(z1 + layer.feedforward(z1))
    else:
        z1 = x + layer.attention(first(x))
        expected = z1 + layer.feedforward(second(z1))
    torch.testing.assert_close(layer(x), expected)


@given(seeds, st.integers(1, 5), st.integers(1, 6), st.integers(2, 9))
def test_t3_10_layer_norm_does_not_depend_on_the_batch(seed, batch, length, width):
    torch.manual_seed(seed)
    layer = LayerNorm(width)
    x = torch.randn(batch, length, width)
    alone = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(layer(x), alone, atol=1e-6, rtol=1e-6)
    others = torch.cat([x[:1], torch.randn(batch, length, width) * 100])
    torch.testing.assert_close(layer(others)[0], layer(x)[0], atol=1e-6, rtol=1e-6)


@given(seeds, st.integers(1, 6), st.integers(1, 9), st.integers(1, 12), st.data())
def test_t3_10_feedforward_does_not_depend_on_the_other_positions(seed, length, width, hidden, data):
    torch.manual_seed(seed)
    layer = PositionwiseFeedForward(width, hidden, 0.1).eval()
    x = torch.randn(2, length, width)
    place = data.draw(st.integers(0, length - 1))
    changed = torch.randn(2, length, width) * 100
    changed[:, place] = x[:, place]
    torch.testing.assert_close(layer(changed)[:, place], layer(x)[:, place], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(x[:, place]), layer(x)[:, place], atol=1e-5, rtol=1e-5)
