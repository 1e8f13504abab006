"""8-bit encoder layers of the compiled kernels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models.int8 import needs_kernels

from clearhead import EncoderLayer, LayerOptions, masks
from clearhead.runtime.converters.int8 import Int8Converter
from clearhead.runtime.int8.layers import Int8EncoderLayer
from clearhead.runtime.int8.quantize import quantize_model
from clearhead.stacks.encoder import Encoder

pytestmark = needs_kernels


def stack_of(norm_order="post", activation="gelu", heads=4, **options):
    torch.manual_seed(1)
    kinds = LayerOptions(activation=activation, **options)
    return Encoder(64, 128, heads, 0.0, 1, norm_order=norm_order, options=kinds, final_norm=False).eval()


def converter_of(stack, calibrate):
    return Int8Converter(quantize_model(stack, calibrate))


def quantized(stack):
    """The 8-bit layer of a stack with one layer, calibrated on random inputs."""
    converter = converter_of(stack, lambda: stack(torch.randn(8, 50, 64)))
    layer = converter.convert(stack)[id(stack.layers[0])]
    assert isinstance(layer, Int8EncoderLayer)
    return layer


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"scale": 0.7}, {"head_dim": 32}])
def test_close_to_the_original(norm_order, activation, options):
    stack = stack_of(norm_order, activation, **options)
    layer, x = quantized(stack), torch.randn(1, 45, 64)
    mask = masks.packed([17, 1, 27])
    with torch.inference_mode():
        expected, result = stack.layers[0](x, mask), layer(x, mask)
    error = (result - expected).norm() / expected.norm()
    assert error < 0.02, error


@given(lengths=st.lists(st.integers(1, 150), min_size=1, max_size=8), seed=st.integers(0, 5))
def test_sequence_does_not_depend_on_those_packed_with_it(lengths, seed):
    layer = _layer()
    torch.manual_seed(seed)
    x = torch.randn(1, sum(lengths), 64)
    with torch.inference_mode():
        together = layer(x, masks.packed(lengths))[0].split(lengths)
        for part, alone in zip(x[0].split(lengths), together, strict=True):
            assert torch.equal(layer(part[None])[0], alone)


def test_masks():
    layer, x = _layer(), torch.randn(3, 20, 64)
    keep = torch.arange(20) < torch.tensor([[20], [7], [1]])
    with torch.inference_mode():
        padded = layer(x, masks.padding(keep))
        assert torch.equal(layer(x)[1], layer(x[1:2])[0])
        assert torch.equal(padded[1, :7], layer(x[1:2, :7])[0])
        assert not padded[1, 7:].any()
        with pytest.raises(ValueError, match="padding masks and packed sequences only"):
            layer(x, masks.causal(20))


def test_changed_weights_and_gradients_are_refused():
    stack = stack_of()
    layer = quantized(stack)
    with pytest.raises(RuntimeError, match="inference_mode"):
        layer(torch.randn(1, 3, 64))
    with torch.no_grad():
        stack.layers[0].feedforward.inner.bias.add_(1)
        with pytest.raises(RuntimeError, match="changed after they were quantized"):
            layer(torch.randn(1, 3, 64))


def test_sequence_with_nan_is_nan_alone():
    layer, x = _layer(), torch.randn(1, 30, 64)
    x[0, 12, 3] = float("nan")
    with torch.inference_mode():
        first, second, third = layer(x, masks.packed([10, 10, 10]))[0].split(10)
    assert second.isnan().all()
    assert not first.isnan().any()
    assert not third.isnan().any()


@pytest.mark.parametrize("layer", [EncoderLayer(24, 64, 4, 0.0), EncoderLayer(64, 64, 8, 0.0)])
def test_other_widths_stay_as_they_are(layer):
    stack = Encoder(layer.attention.qkv.in_features, 64, layer.attention.num_heads, 0.0, 1)
    converter = converter_of(stack, lambda: stack(torch.randn(2, 9, layer.attention.qkv.in_features)))
    assert id(stack.layers[0]) not in converter.convert(stack)


_cached = []


def _layer():
    if not _cached:
        stack = stack_of()
        _cached.append((stack, quantized(stack)))
    return _cached[0][1]
