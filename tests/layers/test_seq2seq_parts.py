"""Layers of encoder–decoders against their equations and other libraries."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from clearhead import GatedFeedForward, PositionwiseFeedForward, RMSNorm, Seq2Seq, Seq2SeqConfig, TokenEmbedding
from clearhead.equations import embedding, feedforward, norm, positions
from clearhead.layers.attention import RelativePositionBias
from clearhead.layers.embedding import Embedding, OutputProjection, PositionalEncoding

seeds = st.integers(0, 2**16)


def value_and_gradients(compute, *tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = compute(*leaves)
    out.square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@given(seeds, st.integers(1, 3), st.integers(1, 9), st.sampled_from([1e-6, 0.1]))
def test_rms_norm_equals_its_equation_and_torch(seed, batch, width, eps):
    torch.manual_seed(seed)
    x, gamma = torch.randn(batch, 3, width, dtype=torch.float64) * 3, torch.randn(width, dtype=torch.float64)

    def through(kind):
        return lambda x, gamma: torch.func.functional_call(kind(width, eps=eps).double(), {"weight": gamma}, (x,))

    expected = value_and_gradients(lambda x, gamma: norm.rms_norm(x, gamma, eps=eps), x, gamma)
    torch.testing.assert_close(value_and_gradients(through(RMSNorm), x, gamma), expected)
    torch.testing.assert_close(value_and_gradients(through(nn.RMSNorm), x, gamma), expected)


def test_rms_norm_of_16_bits_is_computed_in_32():
    x = torch.full((1, 4), 300.0, dtype=torch.float16)  # its square overflows float16
    torch.testing.assert_close(RMSNorm(4).half()(x), torch.ones(1, 4, dtype=torch.float16))


def test_silu_equals_its_equation_and_torch():
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(feedforward.silu(x), functional.silu(x))
    layer = PositionwiseFeedForward(6, 10, 0.0, activation="silu")
    explicit = functional.silu(layer.inner(x)) @ layer.out.weight.T + layer.out.bias
    torch.testing.assert_close(layer(x), explicit)


@pytest.mark.parametrize("bias", [True, False])
def test_gated_feedforward_of_t5_equals_its_equation(bias):
    layer, x = GatedFeedForward(6, 10, 0.0, activation="gelu_tanh", bias=bias), torch.randn(2, 3, 6)
    u, linear = functional.linear(x, layer.inner.weight, layer.inner.bias).chunk(2, dim=-1)
    gated = feedforward.gate(feedforward.gelu_tanh(u), linear)
    torch.testing.assert_close(layer(x), functional.linear(gated, layer.out.weight, layer.out.bias))
    torch.testing.assert_close(feedforward.gelu_tanh(u), functional.gelu(u, approximate="tanh"))


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_concatenated_sinusoids_equal_their_equation(length, width, last):
    table = positions.concatenated_sinusoids(length, width, last=last)
    assert table.shape == (length, width)
    sines = width // 2 if last else math.ceil(width / 2)
    steps = max(width // 2 - 1, 1) if last else width / 2
    for i in range(length):
        row = [math.sin(i / 10000 ** (j / max(steps, 1))) for j in range(sines)]
        row += [math.cos(i / 10000 ** (j / max(steps, 1))) for j in range(sines)][: width - sines]
        row += [0.0] * (width - len(row))
        torch.testing.assert_close(table[i], torch.tensor(row), atol=1e-6, rtol=1e-6)


@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from([(8, 20), (32, 128), (2, 3)]), st.booleans())
def test_relative_buckets_equal_transformers(queries, before, sizes, bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    buckets, furthest = sizes
    if bidirectional:
        buckets = max(buckets, 4)
    stretch = 17  # far distances too
    keys = (queries + before) * stretch
    result = positions.relative_buckets(queries, keys, buckets, max_distance=furthest, bidirectional=bidirectional)
    distance = torch.arange(keys)[None, :] - torch.arange(keys)[keys - queries :, None]
    expected = T5Attention._relative_position_bucket(
        distance, bidirectional=bidirectional, num_buckets=buckets, max_distance=furthest
    )
    assert torch.equal(result, expected)


def test_relative_biases_are_looked_up_by_bucket():
    layer = RelativePositionBias(8, 3, max_distance=20, bidirectional=False)
    buckets = positions.relative_buckets(2, 5, 8, max_distance=20, bidirectional=False)
    torch.testing.assert_close(layer(2, 5)[0], layer.weight[buckets].permute(2, 0, 1))
    with pytest.raises(ValueError, match="need 2 buckets"):
        RelativePositionBias(1, 3, bidirectional=False)
    with pytest.raises(ValueError, match="max_distance"):
        RelativePositionBias(32, 3, max_distance=16, bidirectional=False)


def test_scaled_embedding_and_output_equal_their_equations():
    tokens, ids, h = TokenEmbedding(7, 6), torch.tensor([[3, 0, 6]]), torch.randn(2, 4, 6)
    placed = Embedding(tokens, positions=PositionalEncoding(6), scale=True)
    expected = embedding.scale_embeddings(embedding.embed(ids, tokens.weight)) + positions.sinusoids(3, 6)
    torch.testing.assert_close(placed(ids), expected)
    torch.testing.assert_close(embedding.scale_embeddings(h), h * math.sqrt(6))
    output = OutputProjection(tokens, bias=True)
    nn.init.normal_(output.bias)
    torch.testing.assert_close(output(h), embedding.unembed(h, tokens.weight, output.bias))
    smaller = OutputProjection(tokens, scale=True)
    torch.testing.assert_close(smaller(h), embedding.unembed(h / math.sqrt(6), tokens.weight))


SMALL = Seq2SeqConfig(vocab_size=11, d_model=8, ffn_hidden=12, num_heads=2, num_layers=1, drop_prob=0.0)


@pytest.mark.parametrize(
    ("changes", "matrices"),
    [
        ({}, 1),
        ({"tie_output": False}, 2),
        ({"share_embeddings": False}, 2),
        ({"share_embeddings": False, "tie_output": False}, 3),
        ({"share_embeddings": False, "target_vocab_size": 13}, 2),
    ],
)
def test_tied_matrix_gets_the_gradients_of_all_uses(changes, matrices):
    model = Seq2Seq(replace(SMALL, **changes))
    source, target = model.source_embedding.tokens.weight, model.target_embedding.tokens.weight
    output = model.output.tokens.weight
    assert len({id(source), id(target), id(output)}) == matrices
    assert (source is target) == model.config.share_embeddings
    assert (target is output) == model.config.tie_output
    sizes = {id(weight): weight.numel() for weight in (source, target, output)}
    others = sum(p.numel() for name, p in model.named_parameters() if "tokens" not in name)
    assert sum(p.numel() for p in model.parameters()) == others + sum(sizes.values())
    # ids 1 and 2 are in the source only, 3 and 4 in the target only
    model(torch.tensor([[1, 2]]), torch.tensor([[3, 4]])).square().sum().backward()
    assert source.grad[[1, 2]].any(dim=1).all()
    assert target.grad[[3, 4]].any(dim=1).all()
    assert output.grad.any(dim=1).all()
    if source is not target and source is not output:
        assert not source.grad[[3, 4]].any()
    if target is not output:
        unread = [0, 9, 10] if source is target else [0, 1, 2]
        assert not target.grad[unread].any()


def test_errors_of_invalid_configs_say_how_to_fix_them():
    for changes, words in (
        ({"vocab_size": 0}, "vocab_size must be at least 1; got 0"),
        ({"decoder_num_layers": 0}, "decoder_num_layers must be at least 1"),
        ({"max_len": 0}, "max_len"),
        ({"pad_id": -1}, "pad_id must be at least 0"),
        ({"drop_prob": 1.0}, "drop_prob is a probability"),
        ({"activation_drop_prob": -0.5}, "activation_drop_prob is a probability"),
        ({"decoder_layer_drop": 1.5}, "decoder_layer_drop"),
        ({"eps": 0.0}, "eps must be above 0"),
        ({"initializer_range": -1.0}, "initializer_range"),
        ({"num_heads": 3}, "divisible by num_heads unless head_dim is set.*num_heads=3"),
        ({"decoder_num_heads": 3}, "num_heads=3"),
        ({"target_vocab_size": 12}, "share_embeddings=False gives each its own"),
        ({"max_len": None}, "sinusoidal positions need a max_len"),
        ({"eos_ids": (11,)}, r"eos_ids must be in the target's vocabulary, 0 to 10; got \(11,\)"),
        ({"eos_ids": (-1,)}, "eos_ids"),
    ):
        with pytest.raises(ValueError, match=words):
            replace(SMALL, **changes)
    assert Seq2Seq(replace(SMALL, num_heads=3, head_dim=4)).decoder.layers[0].attention.out.in_features == 12
    for name, known in (("positions", "fairseq, learned"), ("norm", "layer, rms"), ("norm_order", "post, pre")):
        odd = replace(SMALL)
        object.__setattr__(odd, name, "odd")  # bypasses the type checks of the tests
        with pytest.raises(ValueError, match=f"{known}.*'odd'"):
            odd.__post_init__()
