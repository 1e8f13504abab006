"""Dropout at each of its positions, and LayerDrop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.data.training_data import batch_of, module_of, small_seq2seq

PLACES = ("attention", "feed_forward", "residual", "embedding")


def _probes(model):
    """Return for each position of dropout the functions that run it alone."""
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    ids = torch.randint(5, 200, (2, 5))
    coder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    return {
        "attention": [
            lambda: coder.attention(x),
            lambda: decoder.attention(x),
            lambda: decoder.cross_attention(x, memory),
        ],
        "feed_forward": [lambda: coder.feedforward(x), lambda: decoder.feedforward(x)],
        "residual": [
            lambda: coder.attention_residual(x, torch.sin),
            lambda: coder.feedforward_residual(x, torch.sin),
            lambda: decoder.attention_residual(x, torch.sin),
            lambda: decoder.cross_attention_residual(x, torch.sin),
            lambda: decoder.feedforward_residual(x, torch.sin),
        ],
        "embedding": [lambda: model.source_embedding(ids), lambda: model.target_embedding(ids)],
    }


@pytest.mark.parametrize("position", PLACES)
@pytest.mark.parametrize("layout", ["marian", "bart", "t5"])
def test_dropout_applies_only_at_its_position(data, position, layout):
    module, _ = module_of(data, model={"architecture": layout}, dropout={position: 0.5})
    for name, probes in _probes(module.model).items():
        for probe in probes:
            assert torch.equal(probe(), probe()) == (name != position), name


@pytest.mark.parametrize(
    "task",
    ["text-to-text", "masked-language-model", "classification", "span-answers", "sentence-embeddings", "reranking"],
)
def test_without_dropout_two_passes_are_equal(data, task):
    module, examples = module_of(data, task)
    batch = batch_of(module, examples)
    assert module.model.training
    assert torch.equal(module._loss(batch), module._loss(batch))


def test_head_has_the_residual_rate(data):
    module, _ = module_of(data, "classification", dropout={"residual": 0.5})
    hidden = torch.randn(3, 16)
    assert not torch.equal(module.model.head(hidden), module.model.head(hidden))


@given(rate=st.floats(0.05, 0.95))
def test_dropout_drops_its_share_and_scales_the_rest(data, rate):
    model = small_seq2seq(drop_prob=0.0, embedding_drop_prob=rate)
    ids = torch.randint(0, 50, (20, 20))
    whole = model.eval().source_embedding(ids)
    dropped = model.train().source_embedding(ids)
    assert abs((dropped == 0).float().mean().item() - rate) < 0.05
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / (1 - rate))


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.8])
def test_layer_drop_skips_its_share_of_the_layers(rate):
    model = small_seq2seq(layer_drop=rate, decoder_layer_drop=rate)
    ran = []
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.register_forward_hook(lambda *_: ran.append(1))
    ids = torch.randint(0, 50, (1, 2))
    times = 60
    with torch.no_grad():
        for _ in range(times):
            model.train()(ids, ids)
        shares = 1 - len(ran) / (6 * times)
        assert abs(shares - rate) < 0.12
        ran.clear()
        model.eval()(ids, ids)
    assert len(ran) == 6


def test_skipped_layer_gets_no_gradient():
    model = small_seq2seq(layer_drop=0.5, decoder_layer_drop=0.5).train()
    ran = set()
    for number, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, number=number: ran.add(number))
    ids = torch.randint(0, 50, (2, 3))
    model(ids, ids).sum().backward()
    assert 0 < len(ran) < 3
    for number, layer in enumerate(model.encoder.layers):
        assert all((parameter.grad is not None) == (number in ran) for parameter in layer.parameters())
