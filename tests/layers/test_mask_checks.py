"""A model checks a mask once, not in each layer."""

import pytest
import torch

from clearhead import Decoder, DecoderCache, Encoder, EncoderConfig, EncoderModel, Seq2Seq, Seq2SeqConfig, masks
from clearhead.equations import mask as mask_module

KEEP = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


@pytest.fixture
def checks(monkeypatch):
    """Record the sizes of every check of a mask."""
    calls = []

    def counted(mask, sizes, original=mask_module.check_sizes):
        calls.append(sizes)
        original(mask, sizes)

    monkeypatch.setattr(mask_module, "check_sizes", counted)
    return calls


@pytest.mark.parametrize("build", [masks.padding, lambda keep: keep[:, None, None], lambda _: torch.randn(2, 2, 5, 5)])
@pytest.mark.parametrize("options", [{}, {"windows": [None, 1, None, 1, None, 1]}])
def test_six_encoder_layers_check_a_mask_once(checks, build, options):
    Encoder(8, 12, 2, 0.0, 6, **options)(torch.randn(2, 5, 8), build(KEEP))
    assert checks == [(2, 2, 5, 5)]


def test_encoder_model_checks_a_mask_once(checks):
    model = EncoderModel(EncoderConfig(vocab_size=9, d_model=8, ffn_hidden=12, num_heads=2))
    model(torch.randint(9, (2, 5)), masks.padding(KEEP))
    assert checks == [(2, 2, 5, 5)]


def test_six_decoder_layers_check_each_of_their_masks_once(checks):
    decoder = Decoder(8, 12, 2, 0.0, 6)
    decoder(torch.randn(2, 4, 8), torch.randn(2, 5, 8), masks.causal(4), masks.padding(KEEP))
    assert checks == [(2, 2, 4, 4), (2, 2, 4, 5)]


def test_decoding_steps_check_each_mask_once(checks):
    decoder, cache, memory_mask = Decoder(8, 12, 2, 0.0, 6).eval(), DecoderCache(6), masks.padding(KEEP)
    for step in range(1, 4):
        decoder(torch.randn(2, 1, 8), torch.randn(2, 5, 8), masks.causal(step), memory_mask, cache)
    assert checks == [(2, 2, 1, 1), (2, 2, 1, 5), (2, 2, 1, 2), (2, 2, 1, 3)]


def test_encoder_decoder_checks_each_of_its_masks_once_for_each_use(checks):
    model = Seq2Seq(Seq2SeqConfig(vocab_size=9, d_model=8, ffn_hidden=12, num_heads=2))
    model(torch.randint(9, (2, 5)), torch.randint(9, (2, 4)), masks.padding(KEEP))
    assert checks == [(2, 2, 5, 5), (2, 2, 4, 4), (2, 2, 4, 5)]


def test_mask_is_checked_again_for_other_sizes():
    layer = Encoder(8, 12, 2, 0.0, 1)
    mask = masks.padding(KEEP)
    layer(torch.randn(2, 5, 8), mask)
    with pytest.raises(ValueError, match="made for 5 keys"):
        layer(torch.randn(2, 4, 8), mask)
    with pytest.raises(ValueError, match="2 sequences"):
        layer(torch.randn(3, 5, 8), mask)
