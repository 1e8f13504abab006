"""Fast dropout: rates, random masks, gradients, and its use in layers."""

import pytest
import torch
from torch import nn

from clearhead import EncoderLayer, Seq2Seq, Seq2SeqConfig, masks
from clearhead.equations.attention import scaled_dot_product
from clearhead.kernels.attention import scaled_dot_product_attention
from clearhead.kernels.dropout import dropout_mask, fast_dropout, keep_probability
from clearhead.kernels.native import library
from clearhead.layers.dropout import Dropout, use_fast_dropout


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_rate_of_kept_elements(p):
    n = 1_000_000
    mask = dropout_mask((n,), p)
    assert set(mask.unique().tolist()) == {0, 1}
    deviation = (n * p * (1 - p)) ** 0.5
    assert abs(int(mask.sum()) - n * keep_probability(p)) < 4 * deviation
    assert keep_probability(p) == pytest.approx(1 - p, abs=2**-17)


def test_decisions_from_one_draw_are_independent():
    mask = dropout_mask((400_000,), 0.3).double()
    for shift in (1, 2, 3, 4, 16):
        assert abs(float(torch.corrcoef(torch.stack([mask[:-shift], mask[shift:]]))[0, 1])) < 0.01
    by_place = mask.view(-1, 4).mean(dim=0)  # the four decisions of a draw
    torch.testing.assert_close(by_place, torch.full((4,), 0.7).double(), rtol=0, atol=0.006)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [0.3, 0.5])
def test_values_and_gradients_are_scaled_by_the_mask(dtype, p, monkeypatch):
    monkeypatch.setattr(library, "isa_with", lambda function: None)  # the kernels' masks: native/test_dropout.py
    x = torch.randn(5, 7, 3, dtype=dtype, requires_grad=True)
    torch.manual_seed(3)
    y = fast_dropout(x, p)
    torch.manual_seed(3)
    scaled_mask = dropout_mask(x.shape, p).to(torch.float64) / keep_probability(p)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    assert y.dtype == x.grad.dtype == dtype
    torch.testing.assert_close(
        y.double(), x.double() * scaled_mask, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0
    )
    torch.testing.assert_close(
        x.grad.double(), gradient.double() * scaled_mask, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0
    )


def test_dropout_keeps_the_mean():
    p = 0.3001
    x = torch.ones(1_000_000, dtype=torch.float64)
    assert float(fast_dropout(x, p).mean()) == pytest.approx(1.0, abs=0.003)
    assert float(fast_dropout(x, p).max()) == 1 / keep_probability(p)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5])
def test_masks_of_any_size(size):
    assert dropout_mask((size,), 0.5).shape == (size,)
    assert dropout_mask((2, size), 0.5).shape == (2, size)
    assert fast_dropout(torch.ones(()), 0.5).shape == ()


def test_masks_follow_the_generator_of_torch():
    layer = Dropout(0.5)
    torch.manual_seed(5)
    first, second = layer(torch.ones(100)), layer(torch.ones(100))
    torch.manual_seed(5)
    assert torch.equal(layer(torch.ones(100)), first)
    assert torch.equal(layer(torch.ones(100)), second)
    assert not torch.equal(first, second)


def test_no_dropout_in_evaluation_or_at_rate_zero():
    x = torch.randn(4, 5)
    state = torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match=r"from 0 up to, not including, 1; got 1\.0"):
        Dropout(1.0)


def test_fast_dropout_replaces_every_dropout_and_keeps_weights():
    config = Seq2SeqConfig(vocab_size=30, d_model=8, ffn_hidden=16, num_heads=2, num_layers=2, drop_prob=0.3)
    model = Seq2Seq(config).eval()
    ids, target_ids = torch.randint(30, (2, 2, 6)).unbind()
    names, expected = list(model.state_dict()), model(ids, target_ids)
    use_fast_dropout(model)
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    assert sum(isinstance(module, Dropout) for module in model.modules()) == 2 + 2 * 3 + 2 * 4
    assert not any(module.training for module in model.modules())
    assert list(model.state_dict()) == names
    assert torch.equal(model(ids, target_ids), expected)
    model.train()
    assert not torch.equal(model(ids, target_ids), model(ids, target_ids))


def test_shared_dropout_is_replaced_everywhere():
    shared = nn.Dropout(0.3)
    model = nn.Sequential(shared, nn.Linear(2, 2), shared, nn.Sequential(shared))
    use_fast_dropout(model)
    assert [type(module) for module in (model[0], model[2], model[3][0])] == [Dropout] * 3


def test_fast_dropout_keeps_the_expected_output():
    layer = EncoderLayer(8, 16, 2, 0.3, norm_order="pre")
    use_fast_dropout(layer)
    x = torch.randn(1, 4, 8)
    mean = layer(x.expand(20_000, 4, 8)).mean(dim=0)
    nn_layer = EncoderLayer(8, 16, 2, 0.3, norm_order="pre")
    nn_layer.load_state_dict(layer.state_dict())
    torch.testing.assert_close(mean, nn_layer(x.expand(20_000, 4, 8)).mean(dim=0), rtol=0, atol=0.03)


def masks_of(kind):
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])[:, None, None, :]
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    return {"none": None, "padding": keep, "causal": causal, "both": keep & causal}[kind]


@pytest.mark.parametrize("kind", ["none", "padding", "causal", "both"])
def test_attention_dropout_scales_kept_weights(kind, monkeypatch):
    q, k, v = torch.randn(3, 3, 2, 5, 4, dtype=torch.float64).unbind()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    result = scaled_dot_product_attention(q, k, v, masks_of(kind), drop_prob=0.3)
    torch.manual_seed(3)
    scaled_mask = dropout_mask((3, 2, 5, 16), 0.3)[..., :5] / keep_probability(0.3)  # few keys are padded to 16
    expected = (scaled_dot_product(q, k, v, masks_of(kind))[1] * scaled_mask) @ v
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-9)
    pairs = zip(*(torch.autograd.grad(x.square().sum(), inputs) for x in (result, expected)), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


def test_padded_keys_do_not_change_the_random_masks():
    q, k, v = torch.randn(3, 1, 2, 20, 4).unbind()
    torch.manual_seed(3)
    result = scaled_dot_product_attention(q, k, v, masks.causal(20), drop_prob=0.3, scale=0.7)
    torch.manual_seed(3)
    weights = scaled_dot_product(q, k, v, masks.causal(20), scale=0.7)[1]
    torch.testing.assert_close(result, fast_dropout(weights, 0.3) @ v)


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 4, 1, dtype=torch.bool), masks.causal(8)])
def test_attention_dropout_under_autocast_equals_bfloat16(mask):
    q, k, v = torch.randn(3, 2, 2, 4, 8, dtype=torch.bfloat16).unbind()
    if isinstance(mask, masks.Mask):
        k, v = torch.cat([k, k], dim=2), torch.cat([v, v], dim=2)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        result = scaled_dot_product_attention(q, k, v, mask, drop_prob=0.3)
    torch.manual_seed(3)
    expected = scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, drop_prob=0.3)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_query_without_keys_gets_zeros_with_dropout(dtype):
    q, k, v = torch.randn(3, 3, 2, 5, 4, dtype=dtype).unbind()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    result = scaled_dot_product_attention(q, k, v, masks_of("padding"), drop_prob=0.3)
    assert not result[2].any()
    assert result[:2].isfinite().all()
    for gradient in torch.autograd.grad(result.sum(), inputs):
        assert not gradient[2].any()
        assert gradient.isfinite().all()
