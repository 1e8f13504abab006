"""T2: the equations, computed from the raw weights; a notebook (test_notebooks.py) explains them."""

import torch

from clearhead import EncoderLayer, PositionalEncoding, TokenEmbedding, scaled_dot_product
from clearhead.equations.positions import add_positions


def test_embedding_and_positions():
    embed, encode = TokenEmbedding(9, 6), PositionalEncoding(6)
    ids = torch.tensor([[4, 0, 8]])
    one_hot = torch.zeros(1, 3, 9)
    one_hot[0, [0, 1, 2], ids[0]] = 1
    i, j = torch.arange(3.0)[:, None], torch.arange(3)
    pe = torch.zeros(3, 6)
    pe[:, 0::2], pe[:, 1::2] = torch.sin(i / 10000 ** (2 * j / 6)), torch.cos(i / 10000 ** (2 * j / 6))
    torch.testing.assert_close(encode(embed(ids)), one_hot @ embed.weight + pe)
    torch.testing.assert_close(add_positions(embed(ids), pe), one_hot @ embed.weight + pe)


def test_attention():
    q, k, v = torch.randn(3, 1, 1, 4, 6).unbind()
    scores = q[0, 0] @ k[0, 0].T / 6**0.5
    weights = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
    values, attention = scaled_dot_product(q, k, v)
    torch.testing.assert_close(attention[0, 0], weights)
    torch.testing.assert_close(values[0, 0], weights @ v[0, 0])


def test_self_against_cross_attention():
    x, memory = torch.randn(4, 6), torch.randn(7, 6)
    wq, wk, wv = torch.randn(3, 6, 6).unbind()
    q, k, v = ((source @ weight)[None, None] for source, weight in ((x, wq), (memory, wk), (memory, wv)))
    values, attention = scaled_dot_product(q, k, v)
    assert values.shape == (1, 1, 4, 6)
    assert attention.shape == (1, 1, 4, 7)


def layer_by_hand(layer, x):
    """Z1 = LN(X + MHA(X)); Z2 = LN(Z1 + FFN(Z1)), from the raw weights."""

    def norm(z, module):
        mean = z.mean(-1, keepdim=True)
        return module.weight * (z - mean) / (((z - mean) ** 2).mean(-1, keepdim=True) + 1e-5).sqrt() + module.bias

    wq, wk, wv = layer.attention.qkv.weight.chunk(3)
    bq, bk, bv = layer.attention.qkv.bias.chunk(3)
    heads = []
    width = x.shape[-1] // layer.attention.num_heads
    for head in range(layer.attention.num_heads):
        own = slice(head * width, (head + 1) * width)
        q, k, v = x @ wq[own].T + bq[own], x @ wk[own].T + bk[own], x @ wv[own].T + bv[own]
        scores = (q @ k.T / width**0.5).exp()
        heads.append(scores / scores.sum(-1, keepdim=True) @ v)
    attention = torch.cat(heads, dim=-1) @ layer.attention.out.weight.T + layer.attention.out.bias
    z1 = norm(x + attention, layer.attention_residual.norm)
    inner, out = layer.feedforward.inner, layer.feedforward.out
    ffn = torch.clamp(z1 @ inner.weight.T + inner.bias, min=0) @ out.weight.T + out.bias
    return norm(z1 + ffn, layer.feedforward_residual.norm)


def test_one_block():
    layer = EncoderLayer(12, 20, 3, 0.1).eval()
    x = torch.randn(5, 12)
    torch.testing.assert_close(layer(x[None])[0], layer_by_hand(layer, x), atol=1e-5, rtol=1e-5)


def test_the_loop_over_the_blocks():
    from clearhead import Encoder

    encoder = Encoder(12, 20, 3, 0.1, 4).eval()
    x = z = torch.randn(5, 12)
    for layer in encoder.layers:
        z = layer_by_hand(layer, z)
    torch.testing.assert_close(encoder(x[None])[0], z, atol=1e-4, rtol=1e-4)
