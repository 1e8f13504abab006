"""Layers against their equations, and their dropout."""

import inspect
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clearhead import (
    Encoder,
    EncoderConfig,
    EncoderLayer,
    EncoderModel,
    GatedFeedForward,
    LayerNorm,
    LayerOptions,
    MultiHeadAttention,
    PositionalEncoding,
    PositionwiseFeedForward,
    TokenEmbedding,
)
from clearhead.equations import embedding, feedforward, norm, positions
from clearhead.equations.residual import dropout, residual_add
from clearhead.layers.attention import RotaryEmbedding
from clearhead.layers.embedding import Embedding, LearnedPositionalEncoding, TokenTypeEmbedding
from clearhead.layers.feedforward import get_activation
from clearhead.layers.residual import PostNorm, PreNorm, residual


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 99))
def test_layer_norm_equals_its_equation_and_torch(shape, batch, seed):
    torch.manual_seed(seed)
    layer, theirs = LayerNorm(shape), nn.LayerNorm(shape)
    gamma, beta = torch.randn(shape), torch.randn(shape)
    for module in (layer, theirs):
        module.load_state_dict({"weight": gamma, "bias": beta})
    x = torch.randn(batch, 4, *shape) * 3 + 1
    explicit = norm.layer_norm(x, gamma, beta, parameters_shape=tuple(shape))
    torch.testing.assert_close(layer(x), explicit, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(layer(x), theirs(x))


def test_layer_norm_accepts_an_int_and_checks_the_width():
    assert LayerNorm(512)(torch.rand(2, 512)).shape == (2, 512)
    assert [*LayerNorm(4).state_dict()] == ["weight", "bias"]
    assert LayerNorm(4, bias=False).bias is None
    with pytest.raises(ValueError, match=r"\(512,\).*\(2, 511\)"):
        LayerNorm(512)(torch.rand(2, 511))
    with pytest.raises(ValueError, match="at least 1"):
        LayerNorm(0)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_feedforward_equals_its_equation(activation):
    layer = PositionwiseFeedForward(6, 10, 0.1, activation=activation).eval()
    x = torch.randn(2, 3, 6)
    act = {"relu": feedforward.relu, "gelu": feedforward.gelu, "gelu_tanh": feedforward.gelu_tanh}[activation]
    explicit = feedforward.feedforward(
        x, layer.inner.weight, layer.inner.bias, layer.out.weight, layer.out.bias, activation=act
    )
    torch.testing.assert_close(layer(x), explicit)
    u = feedforward.expand(x, layer.inner.weight, layer.inner.bias)
    torch.testing.assert_close(u, layer.inner(x))
    torch.testing.assert_close(feedforward.contract(act(u), layer.out.weight, layer.out.bias), layer(x))


def test_gated_feedforward_equals_its_equation():
    layer = GatedFeedForward(6, 10, 0.1).eval()
    x = torch.randn(2, 3, 6)
    w1, wg = layer.inner.weight.chunk(2)
    b1, bg = layer.inner.bias.chunk(2)
    u = feedforward.gate(feedforward.gelu(x @ w1.T + b1), x @ wg.T + bg)
    torch.testing.assert_close(layer(x), u @ layer.out.weight.T + layer.out.bias)
    assert EncoderLayer(6, 10, 2, 0.0, options=LayerOptions(activation="geglu"))(x).shape == x.shape


def test_errors_of_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="relu, gelu, gelu_tanh.*'tanhh'"):
        get_activation("tanhh")
    with pytest.raises(ValueError, match='"post".*"pre".*\'middle\''):
        inspect.unwrap(residual)("middle", 8, 0.0)


def test_norm_orders():
    x, f = torch.randn(2, 3, 4), nn.Linear(4, 4)
    post, pre = PostNorm(4, 0.0), PreNorm(4, 0.0)
    torch.testing.assert_close(post(x, f), post.norm(x + f(x)))
    torch.testing.assert_close(pre(x, f), x + f(pre.norm(x)))


def test_d_model_must_be_divisible_by_the_heads():
    for build in (
        lambda: MultiHeadAttention(10, 3),
        lambda: Encoder(10, 8, 4, 0.1, 1),
        lambda: MultiHeadAttention(8, 0),
    ):
        with pytest.raises(ValueError, match="divisible"):
            build()


@given(st.integers(1, 30), st.integers(1, 9))
def test_sinusoids_equal_their_equation(length, width):
    table = positions.sinusoids(length, width)
    for i in range(length):
        for column in range(width):
            angle = torch.tensor(i / 10000 ** (2 * (column // 2) / width), dtype=torch.float64)
            expected = angle.sin() if column % 2 == 0 else angle.cos()
            assert abs(table[i, column].item() - expected.item()) < 1e-6


def test_positional_encoding_is_added_and_is_a_buffer():
    layer = PositionalEncoding(8, max_len=20)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(layer(x), x + positions.sinusoids(20, 8)[:5])
    assert not list(layer.parameters())
    assert [name for name, _ in layer.named_buffers()] == ["pe"]
    assert not layer.state_dict()
    with pytest.raises(ValueError, match="21 tokens.*20"):
        layer(torch.zeros(1, 21, 8))


@given(st.integers(0, 99), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_rotary_scores_depend_on_the_distance_only(seed, one, other, shift):
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator).unbind()

    def product(i, j):
        angles = [positions.rotary_angles(torch.tensor([position]), 8) for position in (i, j)]
        return (positions.rotate(q, angles[0]) * positions.rotate(k, angles[1])).sum()

    torch.testing.assert_close(product(one, other), product(one + shift, other + shift), atol=1e-4, rtol=1e-4)


def test_rotary_attention_runs_and_needs_an_even_width():
    layer = MultiHeadAttention(8, 2, rotary_theta=10000.0)
    x = torch.randn(2, 5, 8)
    assert not torch.allclose(layer(x), MultiHeadAttention(8, 2)(x))
    # without positions, swapping two tokens swaps their outputs; with them it does not
    swapped = x[:, [1, 0, 2, 3, 4]]
    assert not torch.allclose(layer(swapped)[:, 0], layer(x)[:, 1], atol=1e-5)
    with pytest.raises(ValueError, match="even"):
        RotaryEmbedding(3)
    exact = MultiHeadAttention(8, 2, rotary_theta=100.0).double()
    assert torch.autograd.gradcheck(exact, torch.randn(1, 4, 8, dtype=torch.float64, requires_grad=True))


def test_token_embedding_equals_the_one_hot_matmul():
    table = TokenEmbedding(6, 4)
    ids = torch.tensor([[3, 0, 5]])
    torch.testing.assert_close(table(ids), embedding.embed(ids, table.weight))


@pytest.mark.parametrize(("ids", "got"), [([[0, 6]], "6"), ([[-1, 2]], "-1")])
def test_errors_name_ids_outside_the_vocabulary(ids, got):
    with pytest.raises(ValueError, match=f"0 … 5; got {got}"):
        TokenEmbedding(6, 4)(torch.tensor(ids))


def test_token_types_and_learned_positions_are_added():
    types, learned = TokenTypeEmbedding(2, 4), LearnedPositionalEncoding(4, 10)
    x = torch.randn(1, 3, 4)
    torch.testing.assert_close(types(x), x + types.weight[0])
    picked = torch.tensor([[0, 1, 1]])
    torch.testing.assert_close(types(x, picked), embedding.add_token_types(x, picked, types.weight))
    torch.testing.assert_close(learned(x), x + learned.weight[:3])
    places = torch.tensor([[0, 0, 1]])
    torch.testing.assert_close(learned(x, places), x + learned.weight[places])


def test_projection_of_a_narrow_embedding_equals_its_equation():
    narrow, wide = TokenEmbedding(6, 4), nn.Linear(4, 8)
    ids = torch.tensor([[3, 0, 5]])
    expected = embedding.project_embeddings(embedding.embed(ids, narrow.weight), wide.weight, wide.bias)
    torch.testing.assert_close(Embedding(narrow, projection=wide)(ids), expected)


def dropped_share(before, after):
    return (after[before != 0] == 0).float().mean().item()


def test_dropout_places_and_rates():
    layer = PositionwiseFeedForward(4, 2000, 0.3)
    hidden = {}

    def remember(module, inputs, output):
        hidden.update(before=inputs[0], after=output)

    layer.dropout.register_forward_hook(remember)
    layer(torch.randn(30, 4))
    assert abs(dropped_share(hidden["before"], hidden["after"]) - 0.3) < 0.02
    kept = hidden["after"] != 0
    torch.testing.assert_close(hidden["after"][kept], hidden["before"][kept] / 0.7)

    for order in (PostNorm(1000, 0.2), PreNorm(1000, 0.2)):
        order.dropout.register_forward_hook(
            lambda module, inputs, output: hidden.update(before=inputs[0], after=output)
        )
        order(torch.zeros(50, 1000), lambda y: torch.ones(50, 1000))
        assert abs(dropped_share(hidden["before"], hidden["after"]) - 0.2) < 0.02


def test_attention_dropout_is_active_in_training_only():
    layer = MultiHeadAttention(8, 2, drop_prob=0.5)
    x = torch.randn(2, 6, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    layer.drop_prob = 0.0
    layer.train()
    torch.testing.assert_close(layer(x), layer.eval()(x))


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_no_dropout_in_evaluation(norm_order):
    model = Encoder(
        8, 16, 2, 0.5, 2, norm_order=norm_order, options=LayerOptions(attention_drop_prob=0.5), layer_drop=0.5
    )
    x = torch.randn(2, 6, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    still = Encoder(8, 16, 2, 0.0, 2, norm_order=norm_order)
    still.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(x), still(x))


def test_layer_drop_skips_layers_at_its_rate():
    model = Encoder(8, 16, 2, 0.0, 4, layer_drop=0.3)
    runs = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *_: runs.append(1))
    x = torch.randn(1, 3, 8)
    for _ in range(300):
        model(x)
    assert abs(len(runs) / 1200 - 0.7) < 0.05
    runs.clear()
    model.eval()(x)
    assert len(runs) == 4
    with pytest.raises(ValueError, match="layer_drop"):
        Encoder(8, 16, 2, 0.0, 2, layer_drop=1.0)


def test_residual_sum_and_dropout_equal_their_equations():
    x, change = torch.randn(2, 400, 50)
    torch.testing.assert_close(residual_add(x, change), x + change)
    dropped = dropout(x, 0.25)
    assert abs(dropped_share(x, dropped) - 0.25) < 0.02
    torch.testing.assert_close(dropped[dropped != 0], x[dropped != 0] / 0.75)


def test_dropout_rates_of_a_model():
    config = EncoderConfig(vocab_size=9, d_model=8, num_heads=2, ffn_hidden=300, num_layers=2, drop_prob=0.2)
    model = EncoderModel(replace(config, attention_drop_prob=0.4, layer_drop=0.3))
    rates = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    assert set(rates.values()) == {0.2}
    assert {name.replace("layers.1", "layers.0") for name in rates} == {
        "embedding.dropout",
        "encoder.layers.0.attention_residual.dropout",
        "encoder.layers.0.feedforward.dropout",
        "encoder.layers.0.feedforward_residual.dropout",
    }
    assert [layer.attention.drop_prob for layer in model.encoder.layers] == [0.4, 0.4]
    assert model.encoder.layer_drop == 0.3
    # each rate is applied in a forward pass
    calls = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(
                lambda _m, inputs, output, name=name: calls.update({name: (inputs[0], output)})
            )
    model.encoder.layer_drop = 0.0
    model(torch.randint(9, (40, 50)))
    assert calls.keys() == rates.keys()
    for name, (before, after) in calls.items():
        assert abs(dropped_share(before, after) - 0.2) < 0.02, name


@pytest.mark.parametrize("drop_prob", [-0.1, 1.0, 2.0])
def test_invalid_probabilities_are_errors(drop_prob):
    with pytest.raises(ValueError, match="probability"):
        MultiHeadAttention(8, 2, drop_prob=drop_prob)
    with pytest.raises(ValueError, match="probability"):
        EncoderConfig(vocab_size=9, drop_prob=drop_prob)


def test_invalid_configs_are_errors():
    good = EncoderConfig(vocab_size=9, d_model=8, num_heads=2)
    for changes, words in (
        ({"eps": 0.0}, "eps"),
        ({"eps": float("nan")}, "eps"),
        ({"initializer_range": -1.0}, "initializer_range"),
        ({"pad_id": -1}, "pad_id"),
        ({"num_layers": 0}, "num_layers"),
        ({"windows": (1,)}, "windows"),
        ({"d_model": 6, "positions": "rotary"}, "even"),
    ):
        with pytest.raises(ValueError, match=words):
            replace(good, **changes)


def test_empty_batches_and_rows():
    model = EncoderModel(EncoderConfig(vocab_size=9, d_model=8, num_heads=2, ffn_hidden=8, num_layers=1)).eval()
    assert model(torch.zeros(0, 3, dtype=torch.long)).shape == (0, 3, 8)
    assert model(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 8)


def test_encoder_in_five_lines():
    embed, add_positions = TokenEmbedding(100, 64), PositionalEncoding(64)
    layers = [EncoderLayer(64, 256, 4, 0.1), EncoderLayer(64, 256, 4, 0.1)]
    x = add_positions(embed(torch.tensor([[5, 17, 42]])))
    for layer in layers:
        x = layer(x)
    assert x.shape == (1, 3, 64)
