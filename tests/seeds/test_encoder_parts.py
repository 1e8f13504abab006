"""T1: the parts of the encoder in the first teaching document, without its mistakes."""

import torch

from clearhead import (
    Encoder,
    EncoderLayer,
    LayerNorm,
    MultiHeadAttention,
    PositionwiseFeedForward,
    masks,
    scaled_dot_product,
    trace,
)


def test_scaled_dot_product():
    q, k = torch.randn(2, 30, 8, 5, 64).unbind()
    v = torch.randn(30, 8, 5, 32)
    mask = torch.zeros(30, 1, 1, 5)
    mask[:, :, :, 3:] = float("-inf")
    kept = mask.clone()
    values, attention = scaled_dot_product(q, k, v, mask)
    assert values.shape == (30, 8, 5, 32)
    assert attention.shape == (30, 8, 5, 5)
    assert (attention[..., 3:] == 0).all()
    torch.testing.assert_close(attention.sum(-1), torch.ones(30, 8, 5))
    assert torch.equal(mask, kept)
    # a finite float is added: a constant does not change the weights
    values, _ = scaled_dot_product(q, k, v, torch.full((30, 1, 1, 5), -1e9))
    torch.testing.assert_close(values, v.mean(dim=2, keepdim=True).expand_as(values))


def test_multi_head_attention():
    layer, theirs = MultiHeadAttention(512, 8), torch.nn.MultiheadAttention(512, 8, batch_first=True)
    assert layer.qkv.weight.shape == (3 * 512, 512)
    layer.load_state_dict(dict(zip(layer.state_dict(), ordered(theirs), strict=True)))
    x = torch.randn(3, 5, 512)
    mask = torch.rand(5, 5) < 0.5
    mask.fill_diagonal_(True)
    expected, _ = theirs(x, x, x, attn_mask=~mask)
    torch.testing.assert_close(layer(x, mask), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(x, mask=None), theirs(x, x, x)[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(lost_transpose(layer, x), layer(x), atol=1e-2)


def ordered(theirs):
    named = {"out.weight": theirs.out_proj.weight, "out.bias": theirs.out_proj.bias}
    named |= {"qkv.weight": theirs.in_proj_weight, "qkv.bias": theirs.in_proj_bias}
    return [named[name] for name in MultiHeadAttention(512, 8).state_dict()]


def lost_transpose(layer, x, mask=None):
    """Reshape (B, H, L, d) to (B, L, H d) without the transpose, as in the document."""
    batch, length, width = x.shape
    q, k, v = layer.qkv(x).reshape(batch, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
    values, _ = scaled_dot_product(q, k, v, mask)
    return layer.out(values.reshape(batch, length, width))


def test_the_lost_transpose_mixes_positions():
    layer = MultiHeadAttention(512, 8)
    x = torch.randn(1, 5, 512)
    only_itself = torch.eye(5, dtype=torch.bool)
    changed = x.clone()
    changed[0, 0] += 1
    # if every token attends only to itself, changing one token changes only its own output
    moved = (layer(changed, only_itself) - layer(x, only_itself)).abs().amax(dim=-1)[0] > 1e-6
    assert moved.tolist() == [True, False, False, False, False]

    # as in docs/paper.md: without the transpose, 7 of the 9 other tokens change
    layer = MultiHeadAttention(512, 8)
    x = torch.randn(2, 10, 512)
    changed = x.clone()
    changed[:, 0] += 1
    only_itself = torch.eye(10, dtype=torch.bool)
    difference = lost_transpose(layer, changed, only_itself) - lost_transpose(layer, x, only_itself)
    assert (difference.abs().amax(dim=-1)[0] > 1e-6).tolist() == [True] * 4 + [False] + [True] * 4 + [False]


def test_layer_norm():
    x = torch.randn(5, 3, 512)
    for shape in (512, (512,), [3, 512]):
        layer = LayerNorm(shape)
        over = (-1,) if shape != [3, 512] else (-2, -1)
        mean = x.mean(over, keepdim=True)
        variance = ((x - mean) ** 2).mean(over, keepdim=True)
        torch.testing.assert_close(layer(x), (x - mean) / (variance + 1e-5).sqrt(), atol=1e-5, rtol=1e-5)
        assert torch.equal(layer.weight, torch.ones(layer.parameters_shape))
        assert torch.equal(layer.bias, torch.zeros(layer.parameters_shape))


def test_feedforward():
    layer = PositionwiseFeedForward(512, 2048, 0.1).eval()
    x = torch.randn(2, 10, 512)
    expected = torch.relu(x @ layer.inner.weight.T + layer.inner.bias) @ layer.out.weight.T + layer.out.bias
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)
    gelu = PositionwiseFeedForward(512, 2048, 0.1, activation="gelu").eval()
    assert not torch.allclose(gelu(x), layer(x))


def test_the_mask_reaches_the_attention_of_every_layer():
    layer = EncoderLayer(512, 2048, 8, 0.1).eval()
    x = torch.randn(2, 10, 512)
    keep = torch.arange(10) < torch.tensor([[10], [6]])
    mask = masks.padding(keep)
    torch.testing.assert_close(layer(x, mask)[1, :6], layer(x[1:, :6])[0], atol=1e-5, rtol=1e-5)
    stack = Encoder(512, 2048, 8, 0.1, 3).eval()
    torch.testing.assert_close(stack(x, mask)[1, :6], stack(x[1:, :6])[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(stack(x)[1, :6], stack(x, mask)[1, :6], atol=1e-3)


def test_encoder():
    assert Encoder(512, 2048, 8, 0.1, 6)(torch.randn(2, 10, 512)).shape == (2, 10, 512)


def test_every_intermediate_shape_is_shown_from_outside(capsys):
    encoder = Encoder(512, 2048, 8, 0.1, 1)
    x = torch.randn(2, 10, 512)
    encoder(x)
    assert capsys.readouterr() == ("", "")
    shapes = {step.operation: [size for _, size in step.shape] for step in trace(encoder, x).steps}
    assert shapes["projection"] == [2, 10, 1536]
    assert shapes["split heads"] == [2, 8, 10, 64]
    assert shapes["scores"] == shapes["mask"] == shapes["softmax"] == [2, 8, 10, 10]
    assert shapes["weighted sum"] == [2, 8, 10, 64]
    assert shapes["merge"] == shapes["output"] == shapes["layer norm"] == [2, 10, 512]
    assert shapes["ReLU"] == [2, 10, 2048]
