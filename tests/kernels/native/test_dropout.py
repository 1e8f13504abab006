"""Compiled kernels of dropout, alone and before a residual sum and its layer norm, in each instruction set."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from clearhead.kernels.dropout import fast_dropout, keep_probability
from clearhead.kernels.native import library, training
from clearhead.kernels.residual_norm import drop_add_norm, drop_add_norm_isa
from clearhead.layers.dropout import use_fast_dropout
from clearhead.layers.residual import residual

pytestmark = pytest.mark.skipif(library.isa() is None, reason="no compiled kernels")

SEED = 0x0123456789ABCDEF
ISAS = pytest.mark.parametrize("isa", library.supported())


def kept(seed, indices, p):
    """Return which elements are kept: the hash of training.h in NumPy."""
    with np.errstate(over="ignore"):
        h = (indices.astype(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.uint32) ^ np.uint32(seed & 0xFFFFFFFF)
        for half in (None, np.uint32((seed >> 32) & 0xFFFFFFFF)):
            h = h if half is None else h + half
            h ^= h >> np.uint32(16)
            h *= np.uint32(0x7FEB352D)
            h ^= h >> np.uint32(15)
            h *= np.uint32(0x846CA68B)
            h ^= h >> np.uint32(16)
    return torch.from_numpy(h < np.uint32(round(keep_probability(p) * 2**32)))


@ISAS
@given(
    size=st.integers(0, 70),
    p=st.sampled_from([0.001, 0.1, 0.3, 0.5, 0.9]),
    half=st.booleans(),
    seed=st.integers(0, 2**63),
)
def test_dropped_elements_are_those_of_the_hash(isa, size, p, half, seed):
    x = torch.randn(size).to(torch.bfloat16 if half else torch.float32)
    y = training.dropout(training.dropout_struct(seed, keep_probability(p)), x, isa)
    expected = torch.where(kept(seed, np.arange(size), p), x.float() / keep_probability(p), 0.0).to(x.dtype)
    torch.testing.assert_close(y, expected, rtol=2**-7 if half else 1e-6, atol=0)


@ISAS
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neither_threads_nor_instruction_set_change_a_bit(isa, threads, monkeypatch):
    x = torch.randn(50_001)
    struct = training.dropout_struct(SEED, 0.7)
    expected = training.dropout(struct, x, library.supported()[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(training.dropout(struct, x, isa), expected)


def test_dropped_elements_are_independent():
    p, n = 0.3, 400_000
    masks = torch.stack([(fast_dropout(torch.ones(n), p) > 0).double() for _ in range(3)])
    deviation = (n * p * (1 - p)) ** 0.5
    assert (masks.sum(dim=1) - n * keep_probability(p)).abs().max() < 4 * deviation
    shifted = [masks[0].roll(shift) for shift in (1, 2, 3, 4, 16, 128, 384)]
    correlations = torch.corrcoef(torch.stack([*masks, *shifted]))
    assert correlations.fill_diagonal_(0).abs().max() < 0.01


def test_dropped_nan_and_infinity_are_zero_and_kept_ones_remain():
    x = torch.tensor([math.nan, math.inf, -math.inf] * 100)
    y = fast_dropout(x, 0.5)
    assert set(y[y == 0].tolist()) == {0.0}
    assert 80 < int((y == 0).sum()) < 220
    assert not bool(y[y != 0].isfinite().any())


def parts(rows, width, half):
    x, change = torch.randn(rows, width), torch.randn(rows, width).to(torch.bfloat16 if half else torch.float32)
    return [tensor.requires_grad_() for tensor in (x, change, torch.randn(width), torch.randn(width))]


def composed(x, change, weight, bias, mask):
    """Return LN(x + drop(change)) from PyTorch's operations."""
    return functional.layer_norm(x + (change * mask).to(x.dtype), x.shape[-1:], weight, bias, 1e-5)


@ISAS
@given(rows=st.integers(0, 9), width=st.sampled_from([16, 48, 128]), p=st.sampled_from([0.0, 0.3]), half=st.booleans())
def test_norm_and_its_gradients_equal_pytorch(isa, rows, width, p, half):
    inputs = parts(rows, width, half)
    torch.manual_seed(3)
    ours = drop_add_norm(inputs[0], inputs[1], p, inputs[2], inputs[3], 1e-5, isa)
    torch.manual_seed(3)
    mask = fast_dropout(torch.ones(rows, width), p) if p else torch.ones(rows, width)
    expected = composed(*inputs, mask)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    gradient = torch.randn_like(expected)
    pairs = zip(*(torch.autograd.grad(y, inputs, gradient) for y in (ours, expected)), strict=True)
    for mine, theirs in pairs:
        assert mine.dtype == theirs.dtype
        bound = 1e-2 if mine.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_gradients_do_not_depend_on_threads(threads, monkeypatch):
    x, change, weight, bias = parts(5, 32, half=False)
    torch.manual_seed(3)
    y = drop_add_norm(x, change, 0.3, weight, bias, 1e-5, library.isa())
    expected = torch.autograd.grad(y, (x, change, weight, bias), torch.ones_like(y), retain_graph=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    gradients = torch.autograd.grad(y, (x, change, weight, bias), torch.ones_like(y))
    torch.testing.assert_close(gradients, expected, rtol=1e-6, atol=1e-6)


def sublayer(kind, p=0.3, width=32, **options):
    module = residual(kind, width, p, **options)
    use_fast_dropout(module)
    return module


def test_the_kernel_computes_a_post_norm_in_training(monkeypatch):
    module, x = sublayer("post"), torch.randn(2, 5, 32)
    torch.manual_seed(3)
    fused = module(x, torch.tanh)
    calls = []
    monkeypatch.setattr(library, "isa_with", lambda function: calls.append(function) or library.isa())
    module(x, torch.tanh)
    assert calls == ["drop_add_norm"]
    # with a hook the parts are computed one by one, with the same mask
    module.norm.register_forward_hook(lambda module, args, output: None)
    torch.manual_seed(3)
    torch.testing.assert_close(module(x, torch.tanh), fused, rtol=1e-5, atol=1e-5)
    assert calls == ["drop_add_norm", "dropout"]


@pytest.mark.parametrize("reason", ["evaluation", "rms", "no bias", "float64", "width", "nn.Dropout"])
def test_other_post_norms_are_computed_by_pytorch(reason, monkeypatch):
    options = {"rms": {"norm": "rms"}, "no bias": {"bias": False}, "width": {"width": 20}}.get(reason, {})
    module = residual("post", 32, 0.3) if reason == "nn.Dropout" else sublayer("post", **options)
    x = torch.randn(3, options.get("width", 32), dtype=torch.float64 if reason == "float64" else torch.float32)
    module.to(x.dtype).train(reason != "evaluation")
    monkeypatch.setattr(training, "drop_add_norm", lambda *_: pytest.fail("the kernel was called"))
    assert module(x, torch.tanh).shape == x.shape


def test_tensors_that_the_kernel_cannot_compute():
    x, weight = torch.randn(3, 32), torch.ones(32)
    assert drop_add_norm_isa(x, x.bfloat16(), weight) == library.isa()
    assert drop_add_norm_isa(x, x.half(), weight) is None
    assert drop_add_norm_isa(x, x, weight.bfloat16()) is None
    assert drop_add_norm_isa(x.to("meta"), x.to("meta"), weight) is None
    assert drop_add_norm_isa(x, torch.randn(32), weight) is None
    assert drop_add_norm_isa(x[:, :20], x[:, :20], weight[:20]) is None


def test_nothing_is_drawn_at_rate_zero():
    module, x = sublayer("post", p=0.0), torch.randn(3, 32)
    state = torch.get_rng_state()
    module(x, torch.tanh)
    assert torch.equal(torch.get_rng_state(), state)
