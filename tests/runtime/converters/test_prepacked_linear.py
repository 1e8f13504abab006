"""Prepacked linear layers equal torch.nn's, alone and in whole models."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from clearhead import EncoderConfig, EncoderModel, Seq2Seq, Seq2SeqConfig, masks
from clearhead.kernels import linear as kernels
from clearhead.layers.embedding import OutputProjection, TokenEmbedding
from clearhead.runtime.converters.prepacked_linear import NativeGelu, PrepackedLinear, PrepackedOutputProjection
from clearhead.runtime.inference_copy import inference_copy
from clearhead.train.regularizers.layer_norm import remove_norms

ACTIVATIONS = [None, nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU()]
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not kernels.is_supported(torch.float32), reason="no oneDNN operators in this torch")
FEW = pytest.mark.skipif(
    not kernels.small_batch_is_faster(torch.float32), reason="MKL's layout is not faster on this processor"
)
HALF = pytest.mark.skipif(not kernels.is_supported(torch.bfloat16), reason="this processor packs no bfloat16")


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), pytest.param(torch.bfloat16, 0.06, marks=HALF)])
@given(st.integers(0, 9), st.integers(1, 40), st.integers(1, 40), st.sampled_from(ACTIVATIONS), st.booleans())
@settings(max_examples=40)
def test_equals_linear_and_activation(dtype, bound, rows, inputs, outputs, activation, bias):
    linear, x = nn.Linear(inputs, outputs, bias=bias), torch.randn(2, rows, inputs)
    with torch.inference_mode():
        plain = linear(x) if activation is None else activation(linear(x))
        result = PrepackedLinear(linear, dtype, activation)(x.to(dtype))
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), plain, atol=bound, rtol=bound)


def test_row_does_not_depend_on_other_rows():
    """The kernels for some numbers of rows add in another order, as with torch 2.11 and AVX2."""
    linear, x = PrepackedLinear(nn.Linear(48, 40), torch.float32, nn.GELU()), torch.randn(100, 48)
    with torch.inference_mode():
        together = linear(x)
        for rows in (1, 2, 15, 16, 33):
            distance = (linear(x[:rows]) - together[:rows]).norm(dim=1) / together[:rows].norm(dim=1)
            assert distance.max() < 1e-6


@FEW
@given(st.integers(0, 300), st.integers(1, 80), st.integers(1, 80), st.booleans(), st.integers(1, 2))
@settings(max_examples=60)
def test_small_batch_packing_equals_linear_for_any_number_of_rows(rows, inputs, outputs, bias, threads):
    linear, x = nn.Linear(inputs, outputs, bias=bias), torch.randn(rows, 1, inputs)
    packed, before = PrepackedLinear(linear, torch.float32, small_batch=True), torch.get_num_threads()
    with torch.inference_mode():
        result = packed(x)
        torch.testing.assert_close(result, linear(x), atol=1e-5, rtol=1e-5)
        torch.set_num_threads(threads)
        try:
            alone = packed(x[: rows // 2])
        finally:
            torch.set_num_threads(before)
    # bit-identical, except for a single row with a small matrix
    assert float((alone - result[: rows // 2]).norm()) <= 1e-6 * (1 + float(alone.norm()))
    with torch.no_grad():
        linear.weight.mul_(2)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), linear(x), atol=1e-5, rtol=1e-5)


@FEW
@pytest.mark.parametrize("rows", [1, 5, 128, 300])
def test_small_batch_packing_uses_the_packed_weight(rows):
    weight, x, packed = torch.randn(40, 48), torch.randn(rows, 48), kernels.SmallBatchPackedWeight(torch.float32)
    with torch.inference_mode():
        result = packed.matmul(x, weight)
        assert torch.equal(packed._multiply(x, torch.zeros_like(weight), kernels.NO_ACTIVATION), result)
        torch.testing.assert_close(result, functional.linear(x, weight), atol=1e-4, rtol=1e-4)


@FEW
def test_only_decoders_are_packed_for_small_batches():
    config = Seq2SeqConfig(vocab_size=50, d_model=16, ffn_hidden=32, num_heads=2, num_layers=1, activation="gelu")
    runs = inference_copy(Seq2Seq(config).eval(), "float32", CPU)

    def few(stack):
        packed = [
            part.packed for part in stack.modules() if isinstance(part, PrepackedLinear | PrepackedOutputProjection)
        ]
        return {isinstance(one, kernels.SmallBatchPackedWeight) for one in packed}

    assert (few(runs.encoder), few(runs.decoder), few(runs.output)) == ({False}, {True}, {True})
    low = inference_copy(Seq2Seq(config).eval(), "bfloat16", CPU)
    assert few(low) == {False}


def test_self_test_detects_wrong_small_batch_matmul(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": True}, raising=False)
    monkeypatch.setattr(kernels.SmallBatchPackedWeight, "_multiply", lambda self, x, weight, name: x @ weight.T)
    assert not kernels.small_batch_is_faster.__wrapped__(torch.float32)

    def absent(self, weight):
        raise AttributeError("no such operator")

    monkeypatch.setattr(kernels.SmallBatchPackedWeight, "_pack", absent)
    assert not kernels.small_batch_is_faster.__wrapped__(torch.float32)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    assert not kernels.small_batch_is_faster.__wrapped__(torch.float32)


def test_input_may_be_noncontiguous():
    linear, x = nn.Linear(8, 4), torch.randn(3, 5, 16)
    with torch.inference_mode():
        result = PrepackedLinear(linear, torch.float32)(x.transpose(0, 1)[..., ::2])
        torch.testing.assert_close(result, linear(x.transpose(0, 1)[..., ::2]))


def test_changed_weight_is_repacked():
    linear, x = nn.Linear(8, 4), torch.randn(3, 8)
    packed = PrepackedLinear(linear, torch.float32)
    with torch.inference_mode():
        packed(x)
    with torch.no_grad():
        linear.weight.mul_(2)
        linear.bias.add_(1)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), linear(x))


@pytest.mark.parametrize("small_batch", [False, pytest.param(True, marks=FEW)])
def test_changed_zero_bias_is_added(small_batch):
    linear, x = nn.Linear(8, 4), torch.randn(3, 8)
    packed = PrepackedLinear(linear, torch.float32, small_batch=small_batch)
    with torch.no_grad():
        linear.bias.zero_()
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), linear(x))
    with torch.no_grad():
        linear.bias.add_(1)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), linear(x))


def test_recording_gradients_raises():
    with pytest.raises(RuntimeError, match="inference_mode"):
        PrepackedLinear(nn.Linear(3, 3), torch.float32)(torch.randn(2, 3))


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("vocabulary", [9, 5000])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), pytest.param(torch.bfloat16, 0.1, marks=HALF)])
def test_best_logits_are_exact_in_bfloat16(dtype, bound, vocabulary, bias, scale):
    output = OutputProjection(TokenEmbedding(vocabulary, 16), bias=bias, scale=scale)
    if bias:
        nn.init.normal_(output.bias)
    h = torch.randn(3, 1, 16).bfloat16()
    with torch.inference_mode():
        plain, best = output(h.float()), 5
        result = PrepackedOutputProjection(output, dtype)(h)
        torch.testing.assert_close(result, plain, atol=bound, rtol=bound)
        torch.testing.assert_close(result.topk(best), plain.topk(best), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_activation_is_fused_only_where_faster(monkeypatch, capability, activation):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    config = EncoderConfig(vocab_size=20, d_model=16, ffn_hidden=24, num_heads=2, num_layers=1, activation=activation)
    model = EncoderModel(config).eval()
    runs = inference_copy(model, "float32", CPU)
    alone = any(isinstance(part, nn.GELU | NativeGelu) for part in runs.modules())
    assert alone == (activation == "gelu" and capability == "AVX2")
    ids = torch.randint(20, (2, 5))
    with torch.inference_mode():
        torch.testing.assert_close(runs(ids), model(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_inference_copy_follows_changes_in_place(monkeypatch, precision, packs):
    if not packs:
        monkeypatch.setattr(kernels, "is_supported", lambda dtype: False)
    config = Seq2SeqConfig(vocab_size=50, d_model=16, ffn_hidden=32, num_heads=2, num_layers=2, relative_buckets=8)
    model, ids = Seq2Seq(config).eval(), torch.randint(50, (2, 5))
    runs = inference_copy(model, precision, CPU)

    def logits(runner):
        with torch.inference_mode():
            return runner(ids, ids)

    before = logits(runs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    torch.testing.assert_close(logits(runs), logits(inference_copy(model, precision, CPU)), rtol=0, atol=0)
    assert (logits(runs) - before).norm() > 0.1 * before.norm()
    model.load_state_dict(Seq2Seq(config).state_dict())
    torch.testing.assert_close(logits(runs), logits(inference_copy(model, precision, CPU)), rtol=0, atol=0)


def test_inference_copies_share_weights():
    model = EncoderModel(EncoderConfig(vocab_size=20, d_model=16, ffn_hidden=24, num_heads=2, num_layers=2)).eval()
    exact, low = inference_copy(model, "float32", CPU), inference_copy(model, "bfloat16", CPU)
    assert {id(p) for p in exact.parameters() if p.numel()} < {id(p) for p in model.parameters()}
    assert sum(isinstance(part, PrepackedLinear) for part in exact.modules()) == 2 * 4
    ids, mask = torch.randint(20, (2, 5)), masks.padding(torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
    with torch.inference_mode():
        plain = model(ids, mask)
        torch.testing.assert_close(exact(ids, mask), plain, atol=1e-5, rtol=1e-5)
        assert functional.cosine_similarity(low(ids, mask).float(), plain, dim=-1).min() > 0.9995
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    with torch.inference_mode():
        torch.testing.assert_close(exact(ids, mask), model(ids, mask), atol=1e-5, rtol=1e-5)
    model.train()
    assert not exact.training


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_models_without_norms(precision):
    model = Seq2Seq(Seq2SeqConfig(vocab_size=50, d_model=16, ffn_hidden=32, num_heads=2, num_layers=1)).eval()
    remove_norms(model)
    ids = torch.randint(50, (2, 5))
    with torch.inference_mode():
        result, expected = inference_copy(model, precision, CPU)(ids, ids), model(ids, ids)
    assert float((result - expected).norm()) <= (1e-5 if precision == "float32" else 0.05) * float(expected.norm())


def test_unsupported_operators_keep_linear_layers(monkeypatch):
    monkeypatch.setattr(kernels, "is_supported", lambda dtype: False)
    model = Seq2Seq(Seq2SeqConfig(vocab_size=20, d_model=16, ffn_hidden=24, num_heads=2, num_layers=1)).eval()
    assert inference_copy(model, "float32", CPU) is model
    low = inference_copy(model, "bfloat16", CPU)
    assert not any(isinstance(part, PrepackedLinear | PrepackedOutputProjection) for part in low.modules())


def test_self_test_detects_wrong_operators(monkeypatch):
    matmul = kernels.PackedWeight.matmul
    monkeypatch.setattr(kernels.PackedWeight, "matmul", lambda self, *inputs: matmul(self, *inputs) * 1.01)
    assert not kernels.is_supported.__wrapped__(torch.float32)

    def absent(self, *arguments):
        raise AttributeError("no such operator")

    monkeypatch.setattr(kernels.PackedWeight, "matmul", absent)
    assert not kernels.is_supported.__wrapped__(torch.bfloat16)


def test_self_test_passes_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels.is_supported.__wrapped__(torch.float32)


MANY_ROW_COUNTS = """
import ctypes
import torch
from torch import nn
from clearhead.runtime.process import tune_process
from clearhead.runtime.converters.prepacked_linear import PrepackedLinear

class MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "a b c d e f g in_use i j".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = MallInfo
tune_process()
linear = PrepackedLinear(nn.Linear(256, 256), torch.float32)
with torch.inference_mode():
    for rows in range(1, 201):
        linear(torch.zeros(8 * rows, 256))
        if rows == 100:
            before = libc.mallinfo2().in_use
print(libc.mallinfo2().in_use - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc's mallinfo2"
)
def test_kernel_cache_is_bounded():
    # in a new process: the size of the cache is fixed at the first matmul
    environment = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    run = subprocess.run([sys.executable, "-c", MANY_ROW_COUNTS], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 5e6  # keeping a hundred more kernels would take 56 MB


HUGE_PAGES = """
from pathlib import Path
from clearhead.runtime.process import tune_process
import torch
tune_process()
held = torch.ones(2**26)
print(sum(int(line.split()[1]) for line in Path("/proc/self/smaps").read_text().splitlines() if "AnonHuge" in line))
"""


@pytest.mark.slow
def test_large_tensors_use_huge_pages_if_available():
    switch = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not switch.exists() or "[never]" in switch.read_text():
        pytest.skip("this system gives no huge pages")
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run([sys.executable, "-c", HUGE_PAGES], capture_output=True, text=True, env=environment)
    assert int(done.stdout) > 100_000, done.stderr
