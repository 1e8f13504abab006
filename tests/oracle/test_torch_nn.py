"""Encoder layers against torch.nn: initial weights, values and gradients for every mask that keeps a key per query."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention import NARROWEST, assert_all_within, assert_within, gradients, gradients_of_torch
from torch import nn

from clearhead import Encoder, EncoderLayer, LayerOptions, MultiHeadAttention, masks
from clearhead.checkpoints.torch_nn.convert import from_torch_nn, to_torch_nn
from clearhead.checkpoints.torch_nn.parameters import LAYER

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}


@st.composite
def cases(draw, dtype):
    """Draw (x, attn_mask, key_padding_mask, num_heads) in torch.nn's polarity, without fully masked rows."""
    num_heads = draw(st.integers(1, 4))
    narrowest = 1 if dtype == torch.float64 else -(-NARROWEST // num_heads)
    batch, length, width = draw(st.integers(1, 3)), draw(st.integers(1, 8)), num_heads * draw(st.integers(narrowest, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    x = torch.randn(batch, length, width, generator=generator, dtype=dtype)
    attn_mask = key_padding = None
    kind = draw(st.sampled_from(["none", "bool", "float", "causal", "per head"]))
    diagonal = torch.eye(length, dtype=torch.bool)
    if kind == "bool":
        attn_mask = (torch.rand(length, length, generator=generator) < 0.5) & ~diagonal
    elif kind == "float":
        attn_mask = torch.randn(length, length, generator=generator, dtype=dtype)
    elif kind == "causal":
        attn_mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    elif kind == "per head":
        attn_mask = (torch.rand(batch * num_heads, length, length, generator=generator) < 0.5) & ~diagonal
    if draw(st.booleans()) and kind in ("none", "causal"):
        key_padding = torch.rand(batch, length, generator=generator) < 0.4
        key_padding[:, 0] = False
    return x, attn_mask, key_padding, num_heads


def run(module, x, *args, **kwargs):
    leaf = x.clone().requires_grad_()
    output = module(leaf, *args, **kwargs)
    output = output[0] if isinstance(output, tuple) else output
    module.zero_grad()
    output.square().sum().backward()
    return output.detach(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multi_head_attention(dtype):
    @given(cases(dtype))
    def check(case):
        x, attn_mask, key_padding, num_heads = case
        theirs = nn.MultiheadAttention(x.shape[-1], num_heads, batch_first=True, dtype=dtype)
        nn.init.normal_(theirs.in_proj_bias)
        ours = MultiHeadAttention(x.shape[-1], num_heads).to(dtype)
        ours.load_state_dict(
            {
                "qkv.weight": theirs.in_proj_weight,
                "qkv.bias": theirs.in_proj_bias,
                "out.weight": theirs.out_proj.weight,
                "out.bias": theirs.out_proj.bias,
            }
        )
        mask = masks.from_torch_nn(attn_mask, key_padding, num_heads=num_heads)
        expected = run_attention(theirs, x, attn_mask, key_padding)
        assert_within(run(ours, x, mask), expected, BOUND[dtype])
        names = ("out_proj.bias", "out_proj.weight", "in_proj_bias", "in_proj_weight")
        assert_all_within(gradients(ours), [theirs.get_parameter(name).grad for name in names], BOUND[dtype])

    check()


def run_attention(theirs, x, attn_mask, key_padding):
    leaf = x.clone().requires_grad_()
    output, _ = theirs(leaf, leaf, leaf, key_padding_mask=key_padding, attn_mask=attn_mask, need_weights=False)
    theirs.zero_grad()
    output.square().sum().backward()
    return output.detach(), leaf.grad


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_encoder_layer_and_stack(dtype, training, norm_first):
    @given(cases(dtype), st.sampled_from(["relu", "gelu"]), st.booleans())
    @settings(max_examples=15)
    def check(case, activation, stacked):
        x, attn_mask, key_padding, num_heads = case
        theirs = nn.TransformerEncoderLayer(
            x.shape[-1], num_heads, 11, 0.0, activation, batch_first=True, norm_first=norm_first, dtype=dtype
        )
        names = {"mask": "mask", "padding": "src_key_padding_mask"}
        if stacked:
            final = nn.LayerNorm(x.shape[-1], dtype=dtype)
            theirs = nn.TransformerEncoder(theirs, 2, norm=final, enable_nested_tensor=False)
        else:
            names["mask"] = "src_mask"
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.4)
        theirs.train(training)
        ours = from_torch_nn(theirs)
        assert ours.training == training
        mask = masks.from_torch_nn(attn_mask, key_padding, num_heads=num_heads)
        expected = run(theirs, x, **{names["mask"]: attn_mask, names["padding"]: key_padding})
        assert_within(run(ours, x, mask), expected, BOUND[dtype])
        assert_all_within(gradients(ours), gradients_of_torch(theirs), BOUND[dtype])
        # and back: equal weights and outputs
        back = to_torch_nn(ours)
        assert all(
            torch.equal(one, other)
            for one, other in zip(back.state_dict().values(), theirs.state_dict().values(), strict=True)
        )
        batch, length = x.shape[:2]
        attn_back, padding_back = masks.to_torch_nn(mask, batch=batch, queries=length, keys=length, num_heads=num_heads)
        again = run(back, x, **{names["mask"]: attn_back, names["padding"]: padding_back})
        assert_within(again, expected, BOUND[dtype])

    check()


@pytest.mark.parametrize("build", ["attention", "layer"])
def test_initial_weights_equal_torch(build):
    torch.manual_seed(7)
    if build == "attention":
        theirs = nn.MultiheadAttention(16, 4)
        expected = [theirs.in_proj_weight, theirs.in_proj_bias, theirs.out_proj.weight, theirs.out_proj.bias]
        torch.manual_seed(7)
        ours = MultiHeadAttention(16, 4)
        result = [ours.qkv.weight, ours.qkv.bias, ours.out.weight, ours.out.bias]
    else:
        theirs = nn.TransformerEncoderLayer(16, 4, 32, 0.1)
        torch.manual_seed(7)
        ours = EncoderLayer(16, 32, 4, 0.1)
        named = ours.state_dict()
        expected = list(theirs.state_dict().values())
        result = [named[LAYER.rows[name]] for name in theirs.state_dict()]
    assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))


def test_layers_of_a_stack_have_separate_weights():
    stack = Encoder(16, 32, 4, 0.1, 3)
    first, second, _ = (layer.attention.qkv.weight for layer in stack.layers)
    assert not torch.equal(first, second)


def test_unsupported_options_of_torch_nn_are_errors():
    with pytest.raises(ValueError, match="rotary"):
        to_torch_nn(EncoderLayer(8, 16, 2, 0.0, rotary_theta=1e4))
    with pytest.raises(ValueError, match="gated"):
        to_torch_nn(EncoderLayer(8, 16, 2, 0.0, options=LayerOptions(activation="geglu")))
    odd = nn.TransformerEncoderLayer(8, 2, 16, activation=torch.tanh)
    with pytest.raises(ValueError, match="ReLU, GELU or SiLU"):
        from_torch_nn(odd)


@pytest.mark.parametrize("activation", [nn.GELU("tanh"), nn.SiLU()])
@pytest.mark.parametrize("bias", [True, False])
def test_other_activations_and_bias_free_layers_convert(bias, activation):
    theirs = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation, batch_first=True, bias=bias)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = from_torch_nn(theirs)
    x = torch.randn(1, 4, 8)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(to_torch_nn(ours)(x), theirs(x))
    # converted modules must not use torch.nn's fast path, which supports only one GELU
    with torch.no_grad():
        torch.testing.assert_close(to_torch_nn(ours.eval())(x), ours(x), atol=1e-5, rtol=1e-5)


def test_dropout_rates_convert_both_ways():
    theirs = nn.TransformerEncoderLayer(8, 2, 16, 0.3)
    theirs.self_attn.dropout = 0.4
    ours = from_torch_nn(theirs)
    assert ours.attention.drop_prob == 0.4
    assert {module.p for module in ours.modules() if isinstance(module, nn.Dropout)} == {0.3}
    back = to_torch_nn(ours)
    assert back.self_attn.dropout == 0.4
    assert {module.p for module in back.modules() if isinstance(module, nn.Dropout)} == {0.3}


@pytest.mark.parametrize("layer_bias", [True, False])
@pytest.mark.parametrize("norm_bias", [True, False])
def test_final_norms_with_and_without_bias(layer_bias, norm_bias):
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, bias=layer_bias, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8, 1e-3, bias=norm_bias), enable_nested_tensor=False)
    ours, x = from_torch_nn(theirs), torch.randn(2, 3, 8)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(to_torch_nn(ours)(x), theirs(x))


def test_unsupported_options_of_an_encoder_are_errors():
    def stack(change):
        theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
        change(theirs)
        return theirs

    for change, words in (
        (lambda them: setattr(them.layers[1], "norm_first", True), "different"),
        (lambda them: setattr(them.layers[0].norm2, "eps", 0.5), "eps"),
        (lambda them: setattr(them.layers[0].dropout1, "p", 0.5), "dropout rates"),
        (lambda them: setattr(them, "norm", nn.LayerNorm(8, elementwise_affine=False)), "with weights"),
        (lambda them: setattr(them, "layers", nn.ModuleList()), "at least one"),
    ):
        with pytest.raises(ValueError, match=words):
            from_torch_nn(stack(change))
    for ours in (
        Encoder(8, 16, 2, 0.0, 2, layer_drop=0.5),
        Encoder(8, 16, 2, 0.0, 2, relative_buckets=8),
        Encoder(8, 16, 2, 0.0, 2, windows=[None, 1]),
        Encoder(8, 16, 2, 0.0, 2, norm_order="pre", first_norm=False),
        Encoder(8, 16, 2, 0.0, 2, options=LayerOptions(norm="rms")),
        Encoder(8, 16, 2, 0.0, 2, options=LayerOptions(scale=1.0)),
        Encoder(8, 16, 2, 0.0, 2, options=LayerOptions(head_dim=8)),
        Encoder(8, 16, 2, 0.1, 2, options=LayerOptions(activation_drop_prob=0.0)),
        Encoder(8, 16, 2, 0.0, 2, options=LayerOptions(attention_bias=False)),
        Encoder(8, 16, 2, 0.0, 2, options=LayerOptions(bias=False, norm_bias=True)),
    ):
        with pytest.raises(ValueError, match="cannot hold"):
            to_torch_nn(ours)
