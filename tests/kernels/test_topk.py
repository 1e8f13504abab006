"""Top-k selection by blocks."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.kernels.topk import topk


@given(st.integers(0, 2**16), st.integers(1, 4), st.integers(1, 3000), st.integers(1, 9), st.booleans())
def test_topk_equals_torch_topk(seed, rows, width, k, masked):
    torch.manual_seed(seed)
    scores = torch.randperm(rows * width).reshape(rows, width).float()
    if masked:
        scores[:, torch.rand(width) < 0.9] = -torch.inf
    values, places = topk(scores, k)
    expected, _ = scores.topk(min(k, width), dim=1)
    assert torch.equal(values, expected)
    assert torch.equal(scores.gather(1, places), expected)
    assert all(len(set(row)) == len(row) for row in places.tolist())
