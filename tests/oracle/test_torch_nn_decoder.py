"""Decoder layers against torch.nn: initial weights, values, gradients under all masks, and conversion both ways."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention import NARROWEST, assert_all_within, assert_within, gradients, gradients_of_torch, parts
from torch import nn

from clearhead import CrossAttention, Decoder, DecoderLayer, Encoder, LayerOptions, masks
from clearhead.checkpoints.torch_nn.convert import EncoderDecoder, from_torch_nn, to_torch_nn
from clearhead.checkpoints.torch_nn.parameters import DECODER_LAYER

# warnings of torch.nn about its own options
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched", "ignore:enable_nested_tensor")

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
KINDS = ["layer", "stack", "stack without norm", "transformer"]


def draw_masks(draw, generator, batch, heads, queries, keys, dtype):
    """Draw torch.nn's (attn_mask, key_padding_mask), True = may not attend; each query keeps the first key."""
    kind = draw(st.sampled_from(["none", "bool", "float", "causal", "per head", "float per head"]))
    shape = (batch * heads, queries, keys) if "per head" in kind else (queries, keys)
    blocked = torch.rand(shape, generator=generator) < 0.5
    blocked[..., 0] = False
    padding = torch.rand(batch, keys, generator=generator) < 0.4
    padding[:, 0] = False
    attn_mask = {
        "none": None,
        "causal": torch.ones(queries, keys, dtype=torch.bool).triu(1),
        "float": torch.randn(shape, generator=generator, dtype=dtype),
        "float per head": torch.randn(shape, generator=generator, dtype=dtype).masked_fill(blocked, float("-inf")),
    }.get(kind, blocked)
    if not draw(st.booleans()):
        return attn_mask, None
    # torch.nn requires one dtype for both
    if attn_mask is not None and attn_mask.is_floating_point():
        return attn_mask, torch.zeros(batch, keys, dtype=dtype).masked_fill(padding, float("-inf"))
    return attn_mask, padding


@st.composite
def problems(draw, dtype):
    """Draw target, memory and torch.nn's masks, with independent sizes and masks."""
    heads, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    length, keys, width = draw(st.integers(1, 5)), draw(st.integers(1, 5)), heads * draw(st.integers(2, 4))
    width = max(width, NARROWEST) if dtype == torch.float32 else width
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    x = torch.randn(batch, length, width, generator=generator, dtype=dtype)
    memory = torch.randn(batch, keys, width, generator=generator, dtype=dtype)
    names = ("tgt_mask", "tgt_key_padding_mask", "memory_mask", "memory_key_padding_mask")
    own = draw_masks(draw, generator, batch, heads, length, length, dtype)
    crossing = draw_masks(draw, generator, batch, heads, length, keys, dtype)
    return x, memory, heads, dict(zip(names, own + crossing, strict=True))


def build(kind, width, heads, dtype, batch_first=True, **options):
    """Build a module of torch.nn with weights, biases and norms far from their initial values."""
    sizes = {"dim_feedforward": 7, "dropout": 0.0, "batch_first": batch_first, "dtype": dtype, **options}
    if kind == "transformer":
        theirs = nn.Transformer(width, heads, 1, 2, **sizes)
        theirs.encoder.enable_nested_tensor = theirs.encoder.use_nested_tensor = False
    else:
        theirs = nn.TransformerDecoderLayer(width, heads, **sizes)
    if kind.startswith("stack"):
        norm = None if kind == "stack without norm" else nn.LayerNorm(width, 1e-3, dtype=dtype)
        theirs = nn.TransformerDecoder(theirs, 2, norm)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    return theirs


def run(compute, modules, *inputs):
    """Return the output and the gradients of its sum of squares for the inputs; weights keep theirs."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = compute(*leaves)
    for module in modules:
        module.zero_grad()
    output.square().sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def ours_on(ours, mask, memory_mask, source_mask=None):
    if isinstance(ours, EncoderDecoder):
        return lambda x, memory: ours.decoder(x, ours.encoder(memory, source_mask), mask, memory_mask)
    return lambda x, memory: ours(x, memory, mask, memory_mask)


def theirs_on(theirs, given_masks, **source_masks):
    if isinstance(theirs, nn.Transformer):
        return lambda x, memory: theirs(memory, x, **given_masks, **source_masks)
    return lambda x, memory: theirs(x, memory, **given_masks)


def assert_close(result, expected, bound):
    torch.testing.assert_close(result, expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_under_every_pair_of_masks(dtype, training, norm_first):
    @given(problems(dtype), st.sampled_from(["relu", "gelu"]), st.sampled_from(KINDS))
    @settings(max_examples=20)
    def check(problem, activation, kind):
        x, memory, heads, given_masks = problem
        theirs = build(kind, x.shape[-1], heads, dtype, activation=activation, norm_first=norm_first).train(training)
        ours = from_torch_nn(theirs)
        assert all(part.training == training for part in parts(ours))
        own, crossing = list(given_masks.values())[:2], list(given_masks.values())[2:]
        mask = masks.from_torch_nn(*own, num_heads=heads)
        memory_mask = masks.from_torch_nn(*crossing, num_heads=heads)
        # the memory has the padding of the source
        source_mask = masks.from_torch_nn(None, crossing[1])
        expected = run(theirs_on(theirs, given_masks, src_key_padding_mask=crossing[1]), [theirs], x, memory)
        result = run(ours_on(ours, mask, memory_mask, source_mask), parts(ours), x, memory)
        assert_within(result, expected, BOUND[dtype])
        # and back: equal weights, masks and outputs
        back = to_torch_nn(ours)
        for one, other in zip(back.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert torch.equal(one, other)
        sizes = {"batch": len(x), "queries": x.shape[1], "num_heads": heads}
        returned = [
            *masks.to_torch_nn(mask, keys=x.shape[1], **sizes),
            *masks.to_torch_nn(memory_mask, keys=memory.shape[1], **sizes),
        ]
        again = theirs_on(back, dict(zip(given_masks, returned, strict=True)), src_key_padding_mask=crossing[1])
        assert_within(run(again, [back], x, memory), expected, BOUND[dtype])
        assert_all_within(gradients(ours), gradients_of_torch(theirs), BOUND[dtype])

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_sequence_first_modules_are_converted_to_batch_first(kind):
    theirs = build(kind, 8, 2, torch.float64, batch_first=False)
    x, memory = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    ours, back = from_torch_nn(theirs), to_torch_nn(from_torch_nn(theirs))
    expected = theirs_on(theirs, {})(x.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1)
    assert_close(ours_on(ours, None, None)(x, memory), expected, 1e-10)
    assert_close(theirs_on(back, {})(x, memory), expected, 1e-10)


def test_query_without_keys_gets_zeros_where_torch_gives_nan():
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    layer = build("layer", 8, 2, torch.float32)
    ours = from_torch_nn(layer)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    blocked = torch.zeros(2, 4, dtype=torch.bool)
    blocked[1] = True
    assert theirs(x, memory, memory, key_padding_mask=blocked)[0][1].isnan().all()
    attention = ours.cross_attention
    mask = masks.from_torch_nn(None, blocked)
    out = attention(x, memory, mask)
    torch.testing.assert_close(out[1], attention.out.bias.expand(3, 8))
    torch.testing.assert_close(out[0], attention(x[:1], memory[:1])[0])
    _, x_grad, memory_grad = run(lambda x, memory: ours(x, memory, None, mask), [ours], x, memory)
    assert x_grad.isfinite().all()
    assert not memory_grad[1].any()
    assert memory_grad[0].any()
    # of the target too
    own = masks.from_torch_nn(torch.ones(3, 3, dtype=torch.bool), None)
    torch.testing.assert_close(ours.attention(x, own), ours.attention.out.bias.expand(2, 3, 8))


def test_initial_weights_of_cross_attention_equal_torch():
    torch.manual_seed(7)
    theirs = nn.MultiheadAttention(16, 4)
    torch.manual_seed(7)
    ours = CrossAttention(16, 4)
    assert torch.equal(torch.cat([ours.q.weight, ours.kv.weight]), theirs.in_proj_weight)
    assert torch.equal(torch.cat([ours.q.bias, ours.kv.bias]), theirs.in_proj_bias)
    assert torch.equal(ours.out.weight, theirs.out_proj.weight)
    assert torch.equal(ours.out.bias, theirs.out_proj.bias)
    # and as many
    result = torch.rand(3)
    torch.manual_seed(7)
    nn.MultiheadAttention(16, 4)
    assert torch.equal(torch.rand(3), result)


def test_initial_weights_of_a_decoder_layer_equal_torch():
    torch.manual_seed(7)
    theirs = nn.TransformerDecoderLayer(16, 4, 32, 0.1).state_dict()
    torch.manual_seed(7)
    ours = to_torch_nn(DecoderLayer(16, 32, 4, 0.1)).state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert set(DECODER_LAYER.rows.values()) == set(DecoderLayer(16, 32, 4, 0.1).state_dict())


def test_first_layer_of_a_new_decoder_equals_torch():
    torch.manual_seed(7)
    theirs = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, 0.1), 3)
    torch.manual_seed(7)
    ours = Decoder(16, 32, 4, 0.1, 3)
    begun = to_torch_nn(ours.layers[0]).state_dict()
    for copied in theirs.layers:
        assert all(torch.equal(begun[name], tensor) for name, tensor in copied.state_dict().items())
    first, second, third = (layer.cross_attention.q.weight for layer in ours.layers)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


@pytest.mark.parametrize("activation", [nn.GELU("tanh"), nn.SiLU(), nn.functional.silu])
@pytest.mark.parametrize("bias", [True, False])
def test_other_activations_and_bias_free_layers(bias, activation):
    theirs = build("stack without norm", 8, 2, torch.float64, activation=activation, bias=bias)
    x, memory = torch.randn(2, 2, 3, 8, dtype=torch.float64).unbind()
    ours = from_torch_nn(theirs)
    assert_close(ours(x, memory), theirs(x, memory), 1e-10)
    assert_close(to_torch_nn(ours)(x, memory), theirs(x, memory), 1e-10)


def test_dropout_rates_convert_both_ways():
    theirs = nn.TransformerDecoderLayer(8, 2, 16, 0.3)
    theirs.self_attn.dropout = theirs.multihead_attn.dropout = 0.4
    ours = from_torch_nn(theirs)
    back = to_torch_nn(ours)
    assert (ours.attention.drop_prob, ours.cross_attention.drop_prob) == (0.4, 0.4)
    assert (back.self_attn.dropout, back.multihead_attn.dropout) == (0.4, 0.4)
    for module in (ours, back):
        assert {part.p for part in module.modules() if isinstance(part, nn.Dropout)} == {0.3}


def test_encoder_and_decoder_convert_to_a_transformer():
    ours = EncoderDecoder(Encoder(8, 16, 2, 0.1, 1).eval(), Decoder(8, 16, 4, 0.1, 2, norm_order="pre").eval())
    theirs = to_torch_nn(ours)
    assert not theirs.training
    assert theirs.encoder.norm is None
    source, target = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    assert_close(theirs(source, target), ours.decoder(target, ours.encoder(source)), 1e-5)
    with pytest.raises(ValueError, match="8 and 16"):
        to_torch_nn(EncoderDecoder(Encoder(8, 16, 2, 0.1, 1), Decoder(16, 16, 4, 0.1, 2)))


def test_unsupported_options_of_torch_nn_are_errors():
    for changes, words in (
        ({"options": LayerOptions(activation="geglu")}, "DecoderLayer cannot hold a gated"),
        ({"options": LayerOptions(norm="rms")}, "RMSNorm"),
        ({"options": LayerOptions(scale=1.0)}, "scale"),
        ({"options": LayerOptions(head_dim=3)}, "head_dim"),
        ({"options": LayerOptions(feedforward_bias=False)}, "biases in only some of its parts"),
        ({"options": LayerOptions(activation_drop_prob=0.2)}, "inside the feed-forward"),
        ({"relative_buckets": 8}, "Decoder cannot hold LayerDrop or relative biases"),
        ({"layer_drop": 0.2}, "LayerDrop"),
    ):
        with pytest.raises(ValueError, match=words):
            to_torch_nn(Decoder(8, 16, 2, 0.0, 2, **changes))


def test_unsupported_options_of_a_decoder_are_errors():
    for change, words in (
        (lambda them: setattr(them.layers[1], "norm_first", True), "different"),
        (lambda them: setattr(them.layers[0].norm3, "eps", 0.5), "eps"),
        (lambda them: setattr(them.layers[0].dropout3, "p", 0.5), "dropout rates"),
        (lambda them: setattr(them.layers[0].multihead_attn, "dropout", 0.5), "dropout rates"),
        (lambda them: setattr(them.layers[0], "activation", torch.tanh), "ReLU, GELU or SiLU"),
        (lambda them: setattr(them, "norm", nn.LayerNorm(8, elementwise_affine=False)), "with weights"),
        (lambda them: setattr(them, "layers", nn.ModuleList([nn.Linear(2, 2)])), "Linear"),
    ):
        theirs = build("stack", 8, 2, torch.float32)
        change(theirs)
        with pytest.raises(ValueError, match=words):
            from_torch_nn(theirs)
    with pytest.raises(ValueError, match="got a Linear"):
        inspect.unwrap(from_torch_nn)(nn.Linear(2, 2))
