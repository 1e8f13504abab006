"""A linear kernel is one converter and one registered precision, which every pipeline accepts by name."""

import numpy as np
import pytest
import torch
from torch import nn

from clearhead import TextEncoder
from clearhead.runtime import precision
from clearhead.runtime.precision import Precision, choose_precision, precision_names, register_precision

CPU = torch.device("cpu")


class RoundedLinear(nn.Module):
    """A linear layer with weights rounded to 8 bits."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.bias = linear.in_features, linear.bias
        scale = linear.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.weight = (linear.weight.detach() / scale).round() * scale

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class RoundingConverter:
    """Replaces the linear layers of stacks by `RoundedLinear`."""

    def supports(self, device):
        return device.type == "cpu"

    def convert(self, module, *, small_batch=False):
        return {id(layer): RoundedLinear(layer) for layer in module.modules() if type(layer) is nn.Linear}


@pytest.fixture
def rounded(monkeypatch):
    """A precision named "rounded", registered for one test."""
    monkeypatch.setattr(precision, "_registry", dict(precision._registry))
    register_precision(Precision("rounded", torch.float32, RoundingConverter()))


@pytest.mark.usefixtures("rounded")
def test_registered_precision_converts_the_linear_layers(tiny_bert):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="rounded", device="cpu")
    layers = [layer for layer in encoder.inference_model.modules() if isinstance(layer, RoundedLinear)]
    assert layers
    assert not any(isinstance(layer, RoundedLinear) for layer in encoder.model.modules())
    texts = ["the old bridge", "hello world"]
    exact = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu").encode(texts, normalize=True)
    vectors = encoder.encode(texts, normalize=True)
    assert not np.array_equal(vectors, exact)
    assert (vectors * exact).sum(axis=1).min() > 0.99


@pytest.mark.usefixtures("rounded")
def test_names_are_unique_and_listed():
    assert precision_names() == ("auto", "float32", "bfloat16", "rounded")
    for name in ("auto", "rounded"):
        with pytest.raises(ValueError, match=f"already a precision named '{name}'"):
            register_precision(Precision(name, torch.float32))


def test_auto_chooses_the_fast_precision_that_was_registered_last(monkeypatch):
    monkeypatch.setattr(precision, "_registry", dict(precision._registry))
    fast = Precision("fast", torch.float32, is_fast=lambda device: device.type == "cpu")
    register_precision(fast)
    assert choose_precision("auto", CPU) is fast
