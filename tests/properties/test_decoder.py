"""Properties of the decoder for all inputs, with and without a cache."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import Decoder, DecoderCache, LayerOptions, Seq2Seq, Seq2SeqConfig, masks
from clearhead.equations.positions import relative_buckets

seeds = st.integers(0, 2**16)
OPTIONS = [
    {},
    {"norm_order": "pre"},
    {"options": LayerOptions(norm="rms", bias=False)},
    {
        "norm_order": "pre",
        "options": LayerOptions(norm="rms", scale=1.0),
        "relative_buckets": 6,
        "relative_max_distance": 9,
    },
    {"options": LayerOptions(head_dim=3)},
    {"options": LayerOptions(scale=1.0, activation="geglu")},
]
POSITIONS = ["sinusoidal", "concatenated", "fairseq", "learned", "none"]
decoders = st.sampled_from(OPTIONS)


def build(options):
    decoder = Decoder(8, 12, 2, 0.1, 2, **options).eval()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return decoder


def model(positions, **options):
    relative = 6 if positions == "none" else 0
    transformer = Seq2Seq(
        Seq2SeqConfig(
            vocab_size=11,
            d_model=8,
            ffn_hidden=12,
            num_heads=2,
            num_layers=2,
            max_len=20,
            positions=positions,
            relative_buckets=relative,
            **options,
        )
    ).eval()
    for parameter in transformer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return transformer


def assert_close(result, expected):
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=20)
@given(seeds, decoders, st.lists(st.integers(1, 3), min_size=1, max_size=4), st.booleans())
def test_cached_decoding_in_chunks_equals_one_pass(seed, options, chunks, padded):
    torch.manual_seed(seed)
    decoder, length, cache = build(options), sum(chunks), DecoderCache(2)
    x, memory = torch.randn(2, length, 8), torch.randn(2, 4, 8)
    keep, memory_keep = torch.ones(2, length, dtype=torch.bool), torch.rand(2, 4) < 0.7
    keep[0, : length // 2] = not padded  # left padding, as in prompts
    memory_mask = masks.padding(memory_keep)
    whole = decoder(x, memory, masks.padding(keep) & masks.causal(length), memory_mask)
    result = []
    for chunk in chunks:
        stop = cache.length + chunk
        mask = masks.padding(keep[:, :stop]) & masks.causal(stop)
        result.append(decoder(x[:, stop - chunk : stop], memory, mask, memory_mask, cache))
    assert cache.length == length
    assert_close(torch.cat(result, dim=1), whole)


@settings(max_examples=20)
@given(seeds, decoders, st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_reordered_rows_continue_from_their_source_row(seed, options, rows):
    torch.manual_seed(seed)
    decoder, cache, order = build(options), DecoderCache(2), torch.tensor(rows)
    x, memory = torch.randn(3, 4, 8), torch.randn(3, 5, 8)
    decoder(x[:, :3], memory, masks.causal(3), None, cache)
    cache.reorder(order, order)
    result = decoder(x[order, 3:], memory[order], masks.causal(4), None, cache)
    assert_close(result, decoder(x[order], memory[order], masks.causal(4))[:, 3:])


@settings(max_examples=20)
@given(seeds, decoders, st.integers(2, 7), st.data())
def test_token_does_not_affect_earlier_outputs(seed, options, length, data):
    torch.manual_seed(seed)
    decoder, position = build(options), data.draw(st.integers(1, length - 1))
    x, memory = torch.randn(2, length, 8), torch.randn(2, 3, 8)
    changed = x.clone()
    changed[:, position:] = 3 * torch.randn(2, length - position, 8)  # a shift alone could vanish in a norm
    mask = masks.causal(length)
    result, expected = decoder(changed, memory, mask), decoder(x, memory, mask)
    assert_close(result[:, :position], expected[:, :position])
    assert not torch.allclose(result[:, position:], expected[:, position:])


@pytest.mark.parametrize("positions", POSITIONS)
def test_token_does_not_affect_earlier_logits_of_a_model(positions):
    @given(seeds, st.integers(2, 7), st.data())
    @settings(max_examples=10)
    def check(seed, length, data):
        torch.manual_seed(seed)
        transformer, position = model(positions), data.draw(st.integers(1, length - 1))
        source, target = torch.randint(11, (2, 4)), torch.randint(11, (2, length))
        changed = target.clone()
        changed[:, position:] = (changed[:, position:] + 1) % 11
        result, expected = transformer(source, changed), transformer(source, target)
        assert_close(result[:, :position], expected[:, :position])
        assert not torch.allclose(result[:, position:], expected[:, position:])

    check()


@settings(max_examples=20)
@given(seeds, decoders)
def test_padding_of_the_memory_does_not_change_the_output(seed, options):
    torch.manual_seed(seed)
    decoder, keep = build(options), torch.rand(2, 5) < 0.6
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    other = torch.where(keep[:, :, None], memory, torch.randn(2, 5, 8) * 100)
    mask = masks.padding(keep)
    assert_close(decoder(x, other, masks.causal(3), mask), decoder(x, memory, masks.causal(3), mask))
    kept = decoder(x[:1], memory[:1, keep[0]], masks.causal(3)) if keep[0].any() else None
    if kept is not None:
        assert_close(decoder(x, memory, masks.causal(3), mask)[:1], kept)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_left_padding_does_not_change_memory_or_logits(positions, norm_order):
    transformer = model(positions, norm_order=norm_order)
    source, target = torch.randint(11, (1, 5)), torch.randint(11, (1, 4))
    keep, target_keep = torch.ones(1, 8, dtype=torch.bool), torch.ones(1, 6, dtype=torch.bool)
    keep[:, :3], target_keep[:, :2] = False, False
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), source], dim=1)
    padded_target = torch.cat([torch.zeros(1, 2, dtype=torch.long), target], dim=1)
    mask, target_mask = masks.padding(keep), masks.padding(target_keep)
    assert_close(transformer.encode(padded, mask)[:, 3:], transformer.encode(source))
    assert_close(transformer(padded, padded_target, mask, target_mask)[:, 2:], transformer(source, target))


def test_relative_biases_of_a_decoder_cover_earlier_tokens():
    decoder = build(OPTIONS[3])
    x, memory = torch.randn(2, 12, 8), torch.randn(2, 3, 8)
    result = decoder(x, memory, masks.causal(12))
    buckets = relative_buckets(12, 12, 6, max_distance=9, bidirectional=False)
    biases = decoder.relative_bias.weight[buckets].permute(2, 0, 1)[None]
    decoder.relative_bias = None
    assert_close(decoder(x, memory, masks.causal(12) & masks.Mask(length=12, bias=biases)), result)


@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_decoding_of_a_model_equals_one_pass(positions):
    @given(seeds)
    @settings(max_examples=20)
    def check(seed):
        torch.manual_seed(seed)
        transformer = model(positions)
        source, target = torch.randint(11, (2, 5)), torch.randint(11, (2, 6))
        memory, cache = transformer.encode(source), transformer.cache()
        steps = [transformer.decode(target[:, position : position + 1], memory, cache=cache) for position in range(6)]
        expected = transformer(source, target)
        distance = (torch.cat(steps, dim=1) - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert distance.max() < 1e-5

    check()


def test_layer_drop_skips_no_layer_with_a_cache():
    from clearhead import Decoder, DecoderCache

    decoder = Decoder(8, 8, 2, 0.0, 3, layer_drop=0.6).train()
    cache, memory = DecoderCache(3), torch.randn(1, 4, 8)
    for _ in range(6):
        decoder(torch.randn(1, 1, 8), memory, cache=cache)
    assert {layer.attention.length for layer in cache.layers} == {6}
