"""T3.10, first two: what the documents say of every input, for every input."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Encoder, LayerNorm, PositionwiseFeedForward, masks

seeds = st.integers(0, 2**16)


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


@given(seeds, st.integers(1, 6))
def test_an_encoder_without_positions_does_not_know_the_order(seed, length):
    torch.manual_seed(seed)
    encoder = Encoder(8, 16, 2, 0.0, 2)
    x, order = torch.randn(1, length, 8), torch.randperm(length)
    torch.testing.assert_close(encoder(x[:, order]), encoder(x)[:, order], atol=1e-5, rtol=1e-5)


@given(seeds, st.integers(2, 8), st.data())
def test_under_a_causal_mask_no_position_sees_a_later_one(seed, length, data):
    torch.manual_seed(seed)
    encoder = Encoder(8, 16, 2, 0.0, 2)
    x = torch.randn(1, length, 8)
    place = data.draw(st.integers(1, length - 1))
    changed = x.clone()
    changed[:, place:] += 3
    mask = masks.causal(length)
    torch.testing.assert_close(encoder(changed, mask)[:, :place], encoder(x, mask)[:, :place], atol=1e-6, rtol=1e-6)
