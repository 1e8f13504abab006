"""Shortlists in 8 bits: the logits of single columns are those of the whole output projection."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.models import folders
from support.models.int8 import INSTRUCTION_SETS, needs_kernels, packed, random_weight

from clearhead import TextToText
from clearhead.generation.generate import generate
from clearhead.generation.state import AllowedTokens, keep_outputs
from clearhead.generation.strategy import EncodedSource
from clearhead.kernels.native import library

pytestmark = needs_kernels

EVERYDAY = (Path(__file__).parents[3] / "examples" / "everyday.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def translator():
    return TextToText.from_pretrained(precision="int8", device="cpu")


def sources_of(model, texts):
    ids = [tokens.ids for tokens in model.tokenizer.encode(texts)]
    return [EncodedSource(source, (model.model.config.start_id,)) for source in ids]


def every_token(model):
    """All tokens of the vocabulary; every third one is common."""
    every_V = torch.arange(model.model.config.target_vocab_size or model.model.config.vocab_size)
    return AllowedTokens(every_V[::3], every_V[every_V % 3 > 0])


def assert_same(ours, expected):
    """Compare searches; log-probabilities are normalized by a sum over tokens in another order."""
    for (one, *_), (other, *_) in zip(ours, expected, strict=True):
        assert one.ids == other.ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 5])
def test_allowing_every_token_gives_the_same_tokens(translator, beams):
    config = translator.generation_config.updated(beam_size=beams)
    sources = sources_of(translator, EVERYDAY)
    every = every_token(translator)
    allowed = [replace(source, allowed=every) for source in sources]
    expected = generate(translator.inference_model, sources, config)
    together = generate(translator.inference_model, allowed, config)
    assert_same(together, expected)
    assert [generate(translator.inference_model, [source], config)[0] for source in allowed] == together
    some = [source if index % 2 else sources[index] for index, source in enumerate(allowed)]
    assert_same(generate(translator.inference_model, some, config), expected)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("options", [{}, {"bad_words_ids": [[12], [250]]}, {"min_new_tokens": 12}])
def test_shortlist_gives_the_tokens_of_masked_logits(translator, beams, options):
    assert translator.shortlist is not None
    config = translator.generation_config.updated(beam_size=beams, max_new_tokens=30, **options)
    sources = sources_of(translator, EVERYDAY)
    allowed = translator.shortlist.allowed([source.ids for source in sources])
    sources = [replace(source, allowed=tokens) for source, tokens in zip(sources, allowed, strict=True)]
    ours = generate(translator.inference_model, sources, config)
    alone = [generate(translator.inference_model, [source], config)[0] for source in sources]
    assert ours == alone  # the tokens that all sentences share are computed elsewhere
    with keep_outputs():
        masked = generate(translator.inference_model, sources, config)
    for (one, *_), (other, *_) in zip(ours, masked, strict=True):
        assert one.ids == other.ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def test_repeated_tokens_never_reach_the_kernels(translator):
    """The kernels have room for one logit of each token, and check no size."""
    source = sources_of(translator, EVERYDAY[:1])[0]
    repeated = AllowedTokens(torch.zeros(10**6, dtype=torch.long), torch.empty(0, dtype=torch.long))
    with pytest.raises(
        ValueError, match="a shortlist with repeated tokens: it has more than the 8000 of the vocabulary"
    ):
        generate(translator.inference_model, [replace(source, allowed=repeated)], translator.generation_config)


@pytest.mark.slow
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("width", [48, 64, 80])
def test_each_instruction_set_and_width(isa, width, tmp_path, monkeypatch):
    monkeypatch.setattr(library, "isa", lambda: isa)
    heads = {"encoder_attention_heads": width // 16, "decoder_attention_heads": width // 16}
    folders.marian(tmp_path, d_model=width, encoder_ffn_dim=2 * width, decoder_ffn_dim=2 * width, **heads)
    model = TextToText.from_pretrained(tmp_path, precision="int8", device="cpu")
    config = model.generation_config.updated(beam_size=3, max_new_tokens=6)
    sources = sources_of(model, ["the house", "a small dog", "we see the water"] * 4)
    every = every_token(model)
    expected = generate(model.inference_model, sources, config)
    allowed = [replace(source, allowed=every) for source in sources]
    together = generate(model.inference_model, allowed, config)
    assert_same(together, expected)
    assert generate(model.inference_model, allowed[:2], config) == together[:2]


@pytest.mark.slow
def test_instruction_sets_give_the_same_tokens_and_log_probabilities(tmp_path, monkeypatch):
    folders.marian(tmp_path)
    found = []
    for isa in INSTRUCTION_SETS:
        monkeypatch.setattr(library, "isa", lambda isa=isa: isa)
        model = TextToText.from_pretrained(tmp_path, precision="int8", device="cpu")
        config = model.generation_config.updated(beam_size=3, max_new_tokens=6)
        sources = sources_of(model, ["the house", "a small dog", "we see the water"])
        allowed = [replace(source, allowed=every_token(model)) for source in sources]
        found.append([generate(model.inference_model, each, config) for each in (sources, allowed)])
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("num_outliers", [0, 3, 16])
def test_selected_columns(isa, num_outliers):
    torch.manual_seed(num_outliers)
    weight = packed(random_weight(96, 80, num_outliers), torch.randn(96), isa=isa)
    columns, x = torch.tensor([0, 3, 4, 17, 80, 95]), torch.randn(7, 80)
    assert torch.equal(weight.select(columns).matmul(x)[:, :6], weight.matmul(x)[:, columns])
