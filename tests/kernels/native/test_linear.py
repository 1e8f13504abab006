"""8-bit linear layers of the compiled kernels."""

import os
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models.int8 import INSTRUCTION_SETS, dequantized, needs_kernels, packed, random_weight
from torch.nn import functional

from clearhead.kernels.native import library

pytestmark = needs_kernels

each_isa = pytest.mark.parametrize("isa", INSTRUCTION_SETS)
SMALLEST = {"relu": 0.0, "gelu": 0.17, "gelu_tanh": 0.171, "silu": 0.279}


@each_isa
@pytest.mark.parametrize("offset", [None, 0.17])
def test_codes_are_the_rounded_inputs(isa, offset):
    weight = random_weight(16, 64, num_outliers=3)
    layer, x = packed(weight, offset=offset, isa=isa), torch.randn(50, 64)
    if offset is not None:
        x = x.clamp_min(-offset)
    codes, scales = library.quantize(layer.struct, x, isa)
    shifted = x + (offset or 0.0)
    shifted[:, weight.outliers_J] = 0
    levels = 127 if offset is None else 255
    expected_scales = shifted.abs().amax(dim=1) / levels
    assert torch.allclose(scales, expected_scales, rtol=1e-6)
    assert (codes - (shifted / expected_scales[:, None])).abs().max() < 0.501


@each_isa
@given(
    rows=st.integers(0, 70),
    inputs=st.sampled_from([16, 48, 256]),
    outputs=st.sampled_from([16, 32, 48, 64, 144]),
    num_outliers=st.integers(0, library.MAX_OUTLIERS),
    offset=st.sampled_from([None, 0.0, 0.17]),
    seed=st.integers(0, 9),
)
def test_result_is_the_product_of_codes(isa, rows, inputs, outputs, num_outliers, offset, seed):
    torch.manual_seed(seed)
    weight, bias, x = random_weight(outputs, inputs, num_outliers), torch.randn(outputs), torch.randn(rows, inputs)
    if offset is not None:
        x = x.clamp_min(-offset)
    layer = packed(weight, bias, offset, isa)
    codes, scales = library.quantize(layer.struct, x, isa)
    inner = codes.double() * scales[:, None].double() - (offset or 0.0)
    inner[:, weight.outliers_J] = x[:, weight.outliers_J].double()
    expected = inner @ dequantized(weight).double().t() + bias
    assert torch.allclose(layer.matmul(x).double(), expected, rtol=1e-4, atol=1e-4)


@each_isa
def test_extreme_codes_do_not_saturate(isa):
    weight = random_weight(32, 256)
    weight.codes_NK.fill_(127)
    weight.codes_NK[1].fill_(-127)
    x = torch.ones(7, 256)
    for offset in (None, 0.0):
        result = packed(weight, offset=offset, isa=isa).matmul(x)
        assert torch.allclose(result, (x @ dequantized(weight).t()), rtol=1e-5)


@each_isa
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activation_follows(isa, activation):
    weight, bias = random_weight(64, 32), torch.randn(64)
    layer, x = packed(weight, bias, isa=isa), torch.randn(40, 32) * torch.logspace(-2, 2, 40)[:, None]
    apply = {
        "relu": torch.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
        "silu": functional.silu,
    }[activation]
    linear, result = layer.matmul(x), layer.matmul(x, activation)
    assert torch.allclose(result, apply(linear), rtol=1e-4, atol=2e-4)
    assert result.min() >= -SMALLEST[activation]


@pytest.mark.skipif(len(INSTRUCTION_SETS) < 2, reason="one instruction set only")
@pytest.mark.parametrize("offset", [None, 0.17])
@pytest.mark.parametrize("activation", list(library.ACTIVATIONS))
def test_results_of_all_instruction_sets_are_equal(activation, offset):
    weight, bias, x = random_weight(96, 384, num_outliers=8), torch.randn(96), torch.randn(33, 384)
    if offset is not None:
        x = x.clamp_min(-offset)
    layers = [packed(weight, bias, offset, isa) for isa in INSTRUCTION_SETS]
    codes = [library.quantize(layer.struct, x, layer.isa)[0] for layer in layers]
    results = [layer.matmul(x, activation) for layer in layers]
    assert all(torch.equal(codes[0], other) for other in codes)
    assert all(torch.equal(results[0], other) for other in results)


@each_isa
@given(rows=st.integers(1, 200), threads=st.integers(1, 4), seed=st.integers(0, 3))
def test_row_does_not_depend_on_other_rows_or_threads(isa, rows, threads, seed):
    torch.manual_seed(seed)
    layer, x = packed(random_weight(80, 32, num_outliers=2), isa=isa), torch.randn(rows, 32)
    alone, before = torch.cat([layer.matmul(row) for row in x.split(1)]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(layer.matmul(x), alone)
    finally:
        torch.set_num_threads(before)


@each_isa
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_row_that_is_not_finite_becomes_nan(isa, value, activation):
    layer, x = packed(random_weight(32, 64, num_outliers=4), isa=isa), torch.randn(9, 64)
    kept = layer.matmul(x, activation)
    x[4, 10] = value
    result = layer.matmul(x, activation)
    others = [row for row in range(9) if row != 4]
    assert result[4].isnan().all()
    assert torch.equal(result[others], kept[others])


@each_isa
def test_zeros(isa):
    bias = torch.randn(16)
    assert torch.equal(packed(random_weight(16, 16), bias, isa=isa).matmul(torch.zeros(3, 16)), bias.expand(3, -1))


def test_threads_that_end_free_their_memory():
    layer, x = packed(random_weight(64, 4096)), torch.randn(64, 4096)

    def run(count):
        for _ in range(count):
            thread = threading.Thread(target=layer.matmul, args=(x,))
            thread.start()
            thread.join()

    run(20)
    before = resident_mib()
    run(150)
    assert resident_mib() - before < 20  # each thread used 0.3 MiB


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_instruction_set_with_wrong_results_is_not_used(monkeypatch, caplog):
    pack = library.pack
    monkeypatch.setattr(
        library, "pack", lambda codes, isa: pack(codes.flip(0), isa) if isa == "avx2" else pack(codes, isa)
    )
    library.supported.cache_clear()
    try:
        assert library.supported() == tuple(isa for isa in INSTRUCTION_SETS if isa != "avx2")
        assert "compiled kernels for avx2 are wrong on this processor, and are not used" in caplog.text
    finally:
        library.supported.cache_clear()


def test_wrong_kernels_are_not_used(monkeypatch, caplog):
    linear = library.linear
    monkeypatch.setattr(library, "linear", lambda *arguments: linear(*arguments) + 1)
    monkeypatch.setattr(library, "supported", library.supported.__wrapped__)
    assert library.isa() is None
    assert "kernels for avx2 are wrong on this processor" in caplog.text
    assert library.why_unavailable() == "the compiled kernels gave wrong results on this processor"
