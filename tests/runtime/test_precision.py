"""A linear kernel is one converter and one registered precision, which every pipeline accepts by name."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from clearhead import EncoderConfig, EncoderModel, Seq2Seq, Seq2SeqConfig, TextEncoder, watch
from clearhead.cli.options import PrecisionOption
from clearhead.kernels.linear import version
from clearhead.runtime import precision
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.precision import Precision, choose_precision, precision_names, register_precision
from clearhead.train.regularizers.layer_norm import remove_norms

CPU = torch.device("cpu")


class RoundedLinear(nn.Module):
    """A linear layer with weights rounded to 8 bits, which are rounded again when the original changes in place."""

    def __init__(self, linear):
        super().__init__()
        self.parameters_of_original = linear.weight, linear.bias
        self.dtype_holder = nn.Parameter(torch.empty(0), requires_grad=False)
        self.version = None

    def forward(self, x):
        weight, bias = self.parameters_of_original
        if self.version != version(weight):
            scale = weight.detach().abs().amax(dim=1, keepdim=True) / 127
            self.weight, self.version = (weight.detach() / scale).round() * scale, version(weight)
        return nn.functional.linear(x, self.weight, bias)


class SharingLinear(RoundedLinear):
    """A wrong replacement: it has the bias of the original."""

    def __init__(self, linear):
        super().__init__(linear)
        self.bias = linear.bias


class RoundingConverter:
    """Replaces the linear layers of stacks by `RoundedLinear`."""

    def __init__(self, layer=RoundedLinear):
        self.layer = layer

    def supports(self, device):
        return device.type == "cpu"

    def convert(self, module, *, small_batch=False):
        return {id(layer): self.layer(layer) for layer in module.modules() if type(layer) is nn.Linear}


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
def test_attention_of_converted_layers_can_be_watched(tiny_bert):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="rounded", device="cpu")
    with watch(encoder, layers=[0], heads=[0]) as records:
        encoder.encode(["the old bridge"])
    assert records.get(0, 0)[0, 0].sum() == pytest.approx(1, rel=1e-5)


@pytest.mark.usefixtures("rounded")
def test_names_are_unique_and_listed():
    assert precision_names()[:3] == ("auto", "float32", "bfloat16")
    assert precision_names()[-1] == "rounded"
    for name in ("auto", "rounded"):
        with pytest.raises(ValueError, match=f"already a precision named '{name}'"):
            register_precision(Precision(name, torch.float32))


def test_command_line_offers_every_precision():
    assert tuple(PrecisionOption) == precision_names()


def _models():
    encoder = EncoderConfig(vocab_size=20, d_model=16, ffn_hidden=32, num_heads=2, num_layers=2)
    seq2seq = Seq2SeqConfig(vocab_size=20, d_model=16, ffn_hidden=32, num_heads=2, num_layers=1)
    ids = torch.arange(14).view(2, 7)
    model = EncoderModel(encoder)
    remove_norms(model)  # the only parameters of its stack are those of the linear layers
    return {
        "encoder": (EncoderModel(encoder), (ids,)),
        "encoder-decoder": (Seq2Seq(seq2seq), (ids, ids)),
        "without norms": (model, (ids,)),
    }


@pytest.mark.parametrize("model_name", ["encoder", "encoder-decoder", "without norms"])
@pytest.mark.parametrize("name", [*(name for name in precision_names() if name != "int8"), "rounded"])  # int8 is fixed
@pytest.mark.usefixtures("rounded")
def test_precision_keeps_the_original_and_follows_its_changes(name, model_name):
    model, inputs = _models()[model_name]
    model.eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    copied = inference_copy(model, name, CPU)
    with torch.inference_mode():
        first = copied(*inputs)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(before[key].dtype == after[key].dtype and torch.equal(before[key], after[key]) for key in before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    with torch.inference_mode():
        changed, new = copied(*inputs), inference_copy(model, name, CPU)(*inputs)
    assert changed.dtype == first.dtype
    assert not torch.allclose(changed, first, atol=1e-3, rtol=1e-2)
    torch.testing.assert_close(changed, new, atol=0, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
def test_auto_chooses_float32_where_pytorch_is_limited_to_avx2(precision):
    code = "from clearhead.runtime.precision import choose_precision as c; import torch; "
    code += f"print(c({precision!r}, torch.device('cpu')).name)"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("float32" if precision == "auto" else precision)


@pytest.mark.usefixtures("rounded")
def test_only_declared_precisions_are_compiled(tiny_bert, monkeypatch):
    monkeypatch.setitem(precision._registry, "fast", replace(precision._registry["rounded"], is_fast=lambda _: True))
    assert choose_precision("auto", CPU) is precision._registry["fast"]
    assert choose_precision("auto", CPU, compile=True).is_compilable
    with pytest.raises(ValueError, match="rounded has its own kernels and cannot be compiled"):
        TextEncoder.from_pretrained(tiny_bert, precision="rounded", device="cpu", compile=True)


def test_int8_without_texts_is_an_error():
    model, _ = _models()["encoder"]
    with pytest.raises(ValueError, match="'int8' needs 8-bit weights"):
        inference_copy(model, "int8", CPU)


def test_replacement_with_a_parameter_of_the_model_is_an_error():
    model, _ = _models()["encoder"]
    sharing = Precision("sharing", torch.bfloat16, RoundingConverter(SharingLinear))
    with pytest.raises(ValueError, match=r"'sharing': SharingLinear has the parameter layers\.0\.\S+bias of the orig"):
        inference_copy(model, sharing, CPU)


def test_auto_chooses_the_fast_precision_that_was_registered_last(monkeypatch):
    monkeypatch.setattr(precision, "_registry", dict(precision._registry))
    fast = Precision("fast", torch.float32, is_fast=lambda device: device.type == "cpu")
    register_precision(fast)
    assert choose_precision("auto", CPU) is fast
    register_precision(replace(fast, name="missing", why_unavailable=lambda model, device: "it is missing"))
    assert choose_precision("auto", CPU) is fast
