"""Properties of the encoder for all inputs."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Encoder, masks

seeds = st.integers(0, 2**16)


@given(seeds, st.integers(1, 6))
def test_encoder_without_positions_is_permutation_equivariant(seed, length):
    torch.manual_seed(seed)
    encoder = Encoder(8, 16, 2, 0.0, 2)
    x, order = torch.randn(1, length, 8), torch.randperm(length)
    torch.testing.assert_close(encoder(x[:, order]), encoder(x)[:, order], atol=1e-5, rtol=1e-5)


@given(seeds, st.integers(2, 8), st.data())
def test_causal_masks_hide_later_positions(seed, length, data):
    torch.manual_seed(seed)
    encoder = Encoder(8, 16, 2, 0.0, 2)
    x = torch.randn(1, length, 8)
    position = data.draw(st.integers(1, length - 1))
    changed = x.clone()
    changed[:, position:] += 3
    mask = masks.causal(length)
    torch.testing.assert_close(
        encoder(changed, mask)[:, :position], encoder(x, mask)[:, :position], atol=1e-6, rtol=1e-6
    )
