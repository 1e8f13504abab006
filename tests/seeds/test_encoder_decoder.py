"""T3: the encoder–decoder document. Its copying model is in test_copy_over_distance.py."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clearhead import (
    Decoder,
    DecoderLayer,
    EncoderConfig,
    EncoderLayer,
    EncoderModel,
    LayerNorm,
    PositionalEncoding,
    PositionwiseFeedForward,
    Seq2Seq,
    Seq2SeqConfig,
    TokenEmbedding,
    masks,
)
from clearhead.checkpoints.torch_nn.convert import from_torch_nn

seeds = st.integers(0, 2**16)
WORDS = {word: number for number, word in enumerate(["hello", "world", "this", "is", "a", "test"])}


def test_positional_encoding():
    layer = PositionalEncoding(512)
    assert layer.pe.shape == (5000, 512)
    assert not layer.pe.requires_grad
    assert not list(layer.parameters())
    assert PositionalEncoding(7, max_len=9)(torch.zeros(1, 9, 7)).shape == (1, 9, 7)


SQUARE = nn.Transformer.generate_square_subsequent_mask


def test_encoder_block_with_attention_mask_and_key_padding_mask():
    theirs = nn.TransformerEncoderLayer(16, 4, 32, 0.0)  # (L, N, E), as in the document
    ours = from_torch_nn(theirs)
    x = torch.randn(6, 3, 16)
    attn_mask = SQUARE(6)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[0, 4:] = padding[2, 1] = True
    added = torch.zeros(3, 6).masked_fill(padding, float("-inf"))
    expected = theirs(x, src_mask=attn_mask, src_key_padding_mask=added)
    joined = masks.from_torch_nn(attn_mask, padding)
    torch.testing.assert_close(ours(x.transpose(0, 1), joined).transpose(0, 1), expected, atol=1e-5, rtol=1e-5)
    own = masks.causal(6) & masks.padding(~padding)
    torch.testing.assert_close(ours(x.transpose(0, 1), own).transpose(0, 1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_block_with_target_memory_and_both_padding_masks(norm_first):
    theirs = nn.TransformerDecoderLayer(16, 4, 32, 0.0, norm_first=norm_first)
    ours = from_torch_nn(theirs)
    x, memory = torch.randn(5, 2, 16), torch.randn(7, 2, 16)
    target_padding, memory_padding = torch.zeros(2, 5, dtype=torch.bool), torch.zeros(2, 7, dtype=torch.bool)
    target_padding[1, 3:] = memory_padding[0, 5:] = True
    memory_mask = torch.rand(5, 7) < 0.4
    memory_mask[:, 0] = False
    expected = theirs(
        x,
        memory,
        tgt_mask=SQUARE(5).isinf(),
        memory_mask=memory_mask,
        tgt_key_padding_mask=target_padding,
        memory_key_padding_mask=memory_padding,
    )
    mask = masks.causal(5) & masks.padding(~target_padding)
    result = ours(x.transpose(0, 1), memory.transpose(0, 1), mask, masks.from_torch_nn(memory_mask, memory_padding))
    torch.testing.assert_close(result.transpose(0, 1), expected, atol=1e-5, rtol=1e-5)


@given(st.integers(1, 12))
def test_the_square_subsequent_mask(n):
    assert torch.equal(masks.additive(masks.causal(n)), SQUARE(n))


def test_encoder_and_decoder_joined_with_it():
    theirs = nn.Transformer(16, 4, 2, 2, 32, 0.0, batch_first=True)
    encoder, decoder = from_torch_nn(theirs)
    source, target = torch.randn(2, 6, 16), torch.randn(2, 4, 16)
    expected = theirs(source, target, tgt_mask=SQUARE(4))
    result = decoder(target, encoder(source), masks.causal(4))
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_embedding_and_layer_norm_give_the_printed_numbers():
    torch.manual_seed(42)
    x = TokenEmbedding(6, 8)(torch.tensor([WORDS[word] for word in WORDS]))
    before = torch.tensor([1.9269, 1.4873, 0.9007, -2.1055, 0.6784, -1.2345, -0.0431, -1.6047])
    after = torch.tensor([1.3737, 1.0601, 0.6418, -1.5020, 0.4833, -0.8809, -0.0312, -1.1448])
    torch.testing.assert_close(x[0], before, atol=5e-5, rtol=0)
    torch.testing.assert_close(LayerNorm(8)(x)[0], after, atol=5e-5, rtol=0)
    # the other words, with torch.nn's modules
    torch.manual_seed(42)
    theirs = nn.LayerNorm(8)(nn.Embedding(6, 8)(torch.arange(6)))
    torch.testing.assert_close(LayerNorm(8)(x), theirs)


def test_feedforward_gives_the_printed_numbers():
    torch.manual_seed(42)
    LayerNorm(8)(TokenEmbedding(6, 8)(torch.arange(6)))
    feedforward = PositionwiseFeedForward(512, 2048, 0.1)
    assert feedforward(torch.rand(2, 10, 512)).shape == (2, 10, 512)
    x = TokenEmbedding(6, 512)(torch.arange(6))
    torch.testing.assert_close(x[0, :3], torch.tensor([0.4575, 0.9477, 1.7342]), atol=5e-5, rtol=0)
    y = feedforward(x)
    torch.testing.assert_close(y[0, :3], torch.tensor([-0.0936, 0.1393, -0.1026]), atol=5e-5, rtol=0)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_both_norm_orders(norm_order):
    layer = EncoderLayer(16, 32, 4, 0.0, norm_order=norm_order)
    x = torch.randn(2, 5, 16)
    first, second = layer.attention_residual.norm, layer.feedforward_residual.norm
    if norm_order == "post":
        z1 = first(x + layer.attention(x))
        expected = second(z1 + layer.feedforward(z1))
    else:
        z1 = x + layer.attention(first(x))
        expected = z1 + layer.feedforward(second(z1))
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_both_norm_orders_of_the_decoder(norm_order):
    layer = DecoderLayer(16, 32, 4, 0.0, norm_order=norm_order)
    x, memory, mask = torch.randn(2, 5, 16), torch.randn(2, 7, 16), masks.causal(5)
    first, second, third = (
        each.norm for each in (layer.attention_residual, layer.cross_attention_residual, layer.feedforward_residual)
    )
    for norm in (first, second, third):
        nn.init.normal_(norm.weight)
    if norm_order == "post":
        z1 = first(x + layer.attention(x, mask))
        z2 = second(z1 + layer.cross_attention(z1, memory))
        expected = third(z2 + layer.feedforward(z2))
    else:
        z1 = x + layer.attention(first(x), mask)
        z2 = z1 + layer.cross_attention(second(z1), memory)
        expected = z2 + layer.feedforward(third(z2))
    torch.testing.assert_close(layer(x, memory, mask), expected)
    ends_normal = Decoder(16, 32, 4, 0.0, 2, norm_order=norm_order).norm is not None
    assert ends_normal == (norm_order == "pre")


SMALL = Seq2SeqConfig(vocab_size=13, d_model=16, ffn_hidden=24, num_heads=2, num_layers=2, drop_prob=0.0)


@pytest.mark.slow
@given(seeds, st.integers(1, 5), st.integers(1, 6))
def test_teacher_forcing_in_one_pass_is_a_pass_for_each_position(seed, source_length, length):
    torch.manual_seed(seed)
    model = Seq2Seq(SMALL)
    source, target = torch.randint(13, (2, source_length)), torch.randint(13, (2, length))
    passes = [model(source, target[:, : position + 1])[:, -1] for position in range(length)]
    torch.testing.assert_close(model(source, target), torch.stack(passes, dim=1), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@given(seeds, st.integers(1, 5), st.integers(1, 6))
def test_teacher_forcing_is_step_by_step_decoding(seed, source_length, length):
    torch.manual_seed(seed)
    model = Seq2Seq(SMALL)
    source, target = torch.randint(13, (2, source_length)), torch.randint(13, (2, length))
    memory, cache = model.encode(source), model.cache()
    steps = [model.decode(target[:, position : position + 1], memory, cache=cache) for position in range(length)]
    torch.testing.assert_close(model(source, target), torch.cat(steps, dim=1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("trained", ["decoder", "encoder"])
def test_one_half_is_pretrained_and_frozen_and_the_other_fine_tuned(trained):
    sizes = {"vocab_size": 13, "d_model": 16, "ffn_hidden": 24, "num_heads": 2, "num_layers": 2, "drop_prob": 0.0}
    model = Seq2Seq(Seq2SeqConfig(**sizes, share_embeddings=False))
    if trained == "decoder":
        pretrained = EncoderModel(EncoderConfig(**sizes))
        model.encoder.load_state_dict(pretrained.encoder.state_dict())
        model.source_embedding.tokens.load_state_dict(pretrained.embedding.tokens.state_dict())
        frozen = [model.encoder, model.source_embedding]
    else:
        pretrained = Seq2Seq(Seq2SeqConfig(**sizes))
        model.decoder.load_state_dict(pretrained.decoder.state_dict())
        frozen = [model.decoder, model.target_embedding, model.output]
    for module in frozen:
        module.requires_grad_(False)
    source, target = torch.randint(2, 13, (8, 5)), torch.randint(2, 13, (8, 6))
    memory = model.encode(source)
    if trained == "decoder":
        # both use the paper's sinusoids and scale
        scaled = pretrained.embedding.positions(pretrained.embedding.tokens(source) * 4.0)
        torch.testing.assert_close(memory, pretrained.encoder(scaled), atol=1e-5, rtol=1e-5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(8):
        logits = model(source, target[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    own = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    # a key's bias adds a constant to all scores, but weight decay and rounding may change it
    assert own - {name for name in own if name.endswith("bias")} <= changed
    assert all(name in own or name.replace("output.", "target_embedding.") in own for name in changed)
    assert torch.equal(model.encode(source), memory) == (trained == "decoder")


PEAK = """
import sys, torch
from clearhead import EncoderConfig, EncoderModel, MultiHeadAttention, masks
from clearhead.benchmark.hardware import peak_memory
length, kind = int(sys.argv[1]), sys.argv[2]
keep = torch.ones(1, length, dtype=torch.bool)
keep[:, -5:] = False
causal, padding = masks.causal(length), masks.padding(keep)
if kind in ("encoder", "packed texts"):
    plan = EncoderConfig(vocab_size=99, d_model=64, ffn_hidden=128, num_heads=4, num_layers=2, positions="rotary",
                         max_len=8192, windows=(None, 32))
    layer, x = EncoderModel(plan).eval(), torch.randint(1, 99, (1, length))
    mask = padding if kind == "encoder" else masks.packed([length - 70, 70])
else:
    layer, x = MultiHeadAttention(64, 4), torch.randn(1, length, 64)
    mask = {"causal": causal, "padding": padding, "both": causal & padding}[kind]
with torch.no_grad():
    layer(x[:, :64], None)
    before = peak_memory()
    assert layer(x, mask).isfinite().all()
print(peak_memory() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["causal", "padding", "both", "encoder", "packed texts"])
def test_the_memory_of_8192_tokens_grows_linearly(kind):
    def peak(length):
        done = subprocess.run([sys.executable, "-c", PEAK, str(length), kind], capture_output=True, check=True)
        return float(done.stdout) * 2**20

    peaks = [peak(length) for length in (2048, 4096, 8192)]
    assert peaks[2] < 2**27  # the scores of one head would take 2**28 bytes
    assert peaks[2] < 3 * max(peaks[1], 2**21)


@given(seeds, st.integers(1, 5), st.integers(1, 6), st.integers(2, 9))
def test_layer_norm_does_not_depend_on_the_batch(seed, batch, length, width):
    torch.manual_seed(seed)
    layer = LayerNorm(width)
    x = torch.randn(batch, length, width)
    alone = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(layer(x), alone, atol=1e-6, rtol=1e-6)
    others = torch.cat([x[:1], torch.randn(batch, length, width) * 100])
    torch.testing.assert_close(layer(others)[0], layer(x)[0], atol=1e-6, rtol=1e-6)


@given(seeds, st.integers(1, 6), st.integers(1, 9), st.integers(1, 12), st.data())
def test_feedforward_does_not_depend_on_the_other_positions(seed, length, width, hidden, data):
    torch.manual_seed(seed)
    layer = PositionwiseFeedForward(width, hidden, 0.1).eval()
    x = torch.randn(2, length, width)
    position = data.draw(st.integers(0, length - 1))
    changed = torch.randn(2, length, width) * 100
    changed[:, position] = x[:, position]
    torch.testing.assert_close(layer(changed)[:, position], layer(x)[:, position], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(x[:, position]), layer(x)[:, position], atol=1e-5, rtol=1e-5)
