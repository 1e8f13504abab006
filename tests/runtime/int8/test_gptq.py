"""Quantization of weights."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models.int8 import dequantized

from clearhead.runtime.int8.gptq import quantize_weight


def correlated_inputs(rows, columns):
    return torch.randn(rows, 6) @ torch.randn(6, columns) + 0.3 * torch.randn(rows, columns)


def test_outputs_change_less_than_with_rounded_weights():
    torch.manual_seed(0)
    weight, x = torch.randn(40, 64), correlated_inputs(500, 64)
    none = torch.empty(0, dtype=torch.long)
    ours = dequantized(quantize_weight(weight, x.t() @ x / 500, none))
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    rounded = (weight / scale).round() * scale
    errors = [((x @ (other - weight).t()).norm()) for other in (ours, rounded)]
    assert errors[0] < 0.6 * errors[1], errors


@given(rows=st.integers(1, 20), columns=st.integers(1, 70), num_outliers=st.integers(0, 5), seed=st.integers(0, 20))
def test_codes_are_within_half_a_step_of_some_weight_and_outliers_are_exact(rows, columns, num_outliers, seed):
    torch.manual_seed(seed)
    weight, x = torch.randn(rows, columns), torch.randn(200, columns)
    outliers = torch.randperm(columns)[:num_outliers].sort().values
    quantized = quantize_weight(weight, x.t() @ x, outliers)
    dense = dequantized(quantized)
    assert quantized.codes_NK.abs().max() <= 127
    assert torch.equal(dense[:, outliers], weight[:, outliers])
    assert not quantized.codes_NK[:, outliers].any()
    # independent inputs: errors are hardly compensated
    assert ((dense - weight).abs() <= 2.5 * quantized.scale_N[:, None] + 1e-6).all()


def test_inputs_without_values_and_weights_of_zeros():
    none = torch.empty(0, dtype=torch.long)
    quantized = quantize_weight(torch.zeros(3, 16), torch.zeros(16, 16), none)
    assert not dequantized(quantized).any()
