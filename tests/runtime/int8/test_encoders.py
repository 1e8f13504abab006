"""Text encoders and classifiers in 8 bits."""

import copy
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import families, overflow
from support.models.int8 import needs_kernels
from support.models.tiny import make_bert
from transformers import BertForSequenceClassification

from clearhead import TextClassifier, TextEncoder
from clearhead.export.int8 import quantize
from clearhead.finite import NonFiniteError
from clearhead.kernels import cpu
from clearhead.kernels.native import library
from clearhead.runtime.int8.calibration import calibration_texts

EXAMPLES = Path(__file__).parents[3] / "examples"
TEXTS = [line for name in ("everyday.txt", "sentences.txt") for line in (EXAMPLES / name).read_text().splitlines()]
WIDE = {"hidden_size": 64, "intermediate_size": 128}


@pytest.fixture(scope="module")
def encoder():
    return TextEncoder.from_pretrained(precision="int8", device="cpu")


@needs_kernels
def test_vectors_are_close_to_float32(encoder, minilm):
    texts = [*TEXTS, "No kidding?", "That's dumb.", "a", " ".join(TEXTS)]
    assert not set(texts) & set(calibration_texts())
    cosines = (encoder.encode(texts) * minilm.encode(texts)).sum(axis=1)
    assert cosines.min() > 0.998, texts[cosines.argmin()]
    assert cosines.mean() > 0.9995
    assert "int8" in repr(encoder)


@pytest.mark.slow
@needs_kernels
@given(st.permutations(range(12)), st.integers(1, 400))
def test_vector_does_not_depend_on_batch_or_order(encoder, order, batch_tokens):
    texts = [*TEXTS[:11], " ".join(TEXTS)]
    expected = np.stack([_alone(encoder, text) for text in texts])
    vectors = encoder.encode([texts[index] for index in order], batch_tokens=batch_tokens)
    assert np.array_equal(vectors, expected[order])


_vectors = {}


def _alone(encoder, text):
    if text not in _vectors:
        _vectors[text] = encoder.encode(text)
    return _vectors[text]


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("family", families.FAMILIES)
def test_each_family(family, tmp_path):
    changes = {"dim": 64, "hidden_dim": 128} if family == "distilbert" else WIDE
    families.make(family, tmp_path, **changes)
    exact, quantized = (TextEncoder.from_pretrained(tmp_path, precision=p, device="cpu") for p in ("float32", "int8"))
    expected, vectors = (model.encode(TEXTS, pooling="mean", normalize=True) for model in (exact, quantized))
    assert (expected * vectors).sum(axis=1).min() > 0.99
    assert not np.array_equal(expected, vectors)


@needs_kernels
def test_classifier(tmp_path):
    make_bert(tmp_path, model_class=BertForSequenceClassification, num_labels=3, hidden_size=64, intermediate_size=128)
    exact, quantized = (
        TextClassifier.from_pretrained(tmp_path, precision=p, device="cpu") for p in ("float32", "int8")
    )
    expected, ours = (
        torch.tensor([list(result.probabilities.values()) for result in model.classify(TEXTS)])
        for model in (exact, quantized)
    )
    assert (ours - expected).abs().mean() < 0.03  # random weights, whose outputs are sensitive to their inputs
    assert not torch.equal(ours, expected)


@needs_kernels
def test_widths_that_do_not_fit_are_said_and_computed_in_another_precision(tmp_path, caplog):
    make_bert(tmp_path, hidden_size=24, intermediate_size=40, num_attention_heads=2)
    with caplog.at_level(logging.WARNING):
        encoder = TextEncoder.from_pretrained(tmp_path, precision="int8", device="cpu")
    assert "int8 is not available: the widths of this model's layers are not multiples of 16" in caplog.text
    assert encoder.precision.name != "int8"


@pytest.mark.parametrize("reason", ["no compiled kernels", "no AVX2"])
def test_processor_or_installation_without_kernels(reason, minilm_folder, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(library, "supported", tuple)
    if reason == "no compiled kernels":
        monkeypatch.setattr(library, "LIBRARY", tmp_path / "missing.so")
    elif not library.LIBRARY.is_file():
        pytest.skip("no compiled kernels")
    else:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
        monkeypatch.setattr(cpu, "has", lambda flag: False)
    with caplog.at_level(logging.WARNING):
        encoder = TextEncoder.from_pretrained(minilm_folder, precision="int8", device="cpu")
    assert (
        f"int8 is not available: {'this installation has' if 'compiled' in reason else 'the processor has'} {reason}"
        in (caplog.text)
    )
    assert encoder.encode("Hello").shape == (384,)


@needs_kernels
def test_changed_weights_are_refused(encoder):
    changed = copy.copy(encoder)
    weight = encoder.model.encoder.layers[0].feedforward.inner.weight
    with torch.no_grad():
        weight.mul_(1.0)
    with pytest.raises(RuntimeError, match="changed after they were quantized; load it again"):
        changed.encode("Hello")


@needs_kernels
def test_model_with_nan_is_not_quantized(tmp_path):
    make_bert(tmp_path, hidden_size=64, intermediate_size=128)
    overflow.everywhere(tmp_path)
    message = rf"^calibration text \d+: the model {tmp_path} produced NaN or infinity in the hidden states of"
    with pytest.raises(NonFiniteError, match=message):
        TextEncoder.from_pretrained(tmp_path, precision="int8", device="cpu")
    with pytest.raises(NonFiniteError, match=message):
        quantize(tmp_path, tmp_path / "int8")
