"""Warm starts: one half is pretrained, the other is new, and transformers opens the model."""

import math

import pytest
import torch
import transformers
from support.models.families import make as make_encoder
from support.models.seq2seq import KINDS, make
from torch.nn import functional

from clearhead import masks
from clearhead.checkpoints import SEQ2SEQ_FAMILIES, load_encoder, load_seq2seq, reinitialize_half, seq2seq_from_encoder
from clearhead.layers.norm import LayerNorm
from clearhead.models.freezing import freeze

LIKE_OTHERS = {"mbart", "pegasus", "mt5"}  # in the sizes of a half
HELD = ["bert", "roberta", "xlm-roberta", "distilbert"]
BART = SEQ2SEQ_FAMILIES["bart"]


def warm(name, folder):
    make_encoder(name, folder)
    encoder, family = load_encoder(folder)
    return encoder, seq2seq_from_encoder(encoder, family, decoder_num_layers=2, start_id=2, eos_ids=(3,))


def batch(config, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, config.vocab_size, (3, 15), generator=generator)
    keep = torch.arange(15) < torch.tensor([[15], [6], [1]])
    return ids.masked_fill(~keep, config.pad_id), keep, torch.randint(4, config.vocab_size, (3, 7), generator=generator)


def assert_within(ours, theirs, bound=1e-5):
    assert ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max() < bound


def assert_opens(kind, family, model, folder):
    family.save(model, folder)
    theirs = getattr(transformers, KINDS[kind][1]).from_pretrained(folder).eval()
    ids, keep, target = batch(model.config)
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=keep.long(), decoder_input_ids=target, use_cache=False).logits
        assert_within(model(ids, target, masks.padding(keep)), expected)
        assert_within(load_seq2seq(folder)[0](ids, target, masks.padding(keep)), expected)


@pytest.mark.parametrize("name", HELD)
def test_encoder_output_is_unchanged(name, tmp_path):
    encoder, model = warm(name, tmp_path / "encoder")
    ids, keep, _ = batch(model.config)
    mask = masks.padding(keep)
    with torch.no_grad():
        expected = encoder(ids, mask)[keep]
        # with the variance of tiny random embeddings, 0.3, BART's greater epsilon is negligible
        assert_within(model.encode(ids, mask)[keep], expected, 1e-3)
        for module in model.modules():
            if isinstance(module, LayerNorm):
                module.eps = encoder.config.eps
        assert_within(model.encode(ids, mask)[keep], expected)
    assert len(model.decoder.layers) == 2
    assert model.config.max_len == encoder.config.max_len
    longest = torch.full((1, model.config.max_len), 5)
    with torch.no_grad():
        assert_within(model.encode(longest), encoder(longest))


@pytest.mark.parametrize("name", HELD)
def test_encoder_with_new_decoder_opens_as_bart(name, tmp_path):
    _, model = warm(name, tmp_path / "encoder")
    assert_opens("bart", BART, model, tmp_path / "saved")
    data = transformers.AutoConfig.from_pretrained(tmp_path / "saved")
    assert (data.decoder_start_token_id, data.eos_token_id, data.pad_token_id) == (2, 3, model.config.pad_id)
    assert data.scale_embedding is False


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mpnet", "cannot hold a mpnet encoder: it has relative position biases. Use bert, roberta"),
        ("modernbert", "its positions are not learned; its attention has windows; .* gated"),
    ],
)
def test_encoder_that_bart_cannot_store_is_refused(name, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        warm(name, tmp_path)


def test_minilm_keeps_its_hidden_states_within_the_documented_bound(minilm_folder):
    encoder, family = load_encoder(minilm_folder)
    model = seq2seq_from_encoder(encoder, family, decoder_num_layers=1, start_id=101, eos_ids=(102,))
    # "the old bridge was closed after the storm"
    ids = torch.tensor([[101, 1996, 2214, 2958, 2001, 2701, 2044, 1996, 4040, 102]])
    with torch.no_grad():
        memory, expected = model.encode(ids), encoder(ids)
    assert_within(memory, expected, 0.007)
    assert not torch.allclose(memory, expected, rtol=1e-5, atol=1e-6), "the two epsilons differ"


def stacks_differ(one, other, half):
    pairs = zip(getattr(one, half).named_parameters(), getattr(other, half).parameters(), strict=True)
    return [not torch.equal(a, b) for (name, a), b in pairs if name.endswith("qkv.weight")]


def test_only_the_new_half_depends_on_the_seed(tmp_path):
    make_encoder("bert", tmp_path)
    encoder, family = load_encoder(tmp_path)
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(seq2seq_from_encoder(encoder, family, decoder_num_layers=1, start_id=2, eos_ids=(3,)))
    one, same, other = models
    assert not any(stacks_differ(one, same, "decoder"))
    assert all(stacks_differ(one, other, "decoder"))
    assert not any(stacks_differ(one, other, "encoder"))
    weight = one.decoder.layers[0].feedforward.inner.weight
    bound = math.sqrt(6 / sum(weight.shape))
    assert 0.95 * bound < weight.abs().max() <= bound, "Xavier's rule, whatever the encoder's own spread was"


@pytest.mark.parametrize("half", ["encoder", "decoder"])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in LIKE_OTHERS else []) for kind in KINDS]
)
def test_one_half_is_reinitialized(kind, half, tmp_path):
    make(kind, tmp_path / "old")
    old, family = load_seq2seq(tmp_path / "old")
    torch.manual_seed(1)
    model = reinitialize_half(old, half, 4)
    torch.manual_seed(2)
    other = reinitialize_half(old, half, 4)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (
        (4, len(old.decoder.layers)) if half == "encoder" else (len(old.encoder.layers), 4)
    )
    pretrained = {"encoder": "decoder", "decoder": "encoder"}[half]
    assert all(
        torch.equal(a, b)
        for a, b in zip(getattr(model, pretrained).parameters(), getattr(old, pretrained).parameters(), strict=True)
    )
    assert all(stacks_differ(model, other, half))
    if old.config.share_embeddings:
        assert torch.equal(model.source_embedding.tokens.weight, old.source_embedding.tokens.weight)
    ids, keep, target = batch(old.config)
    mask = masks.padding(keep)
    with torch.no_grad():
        if half == "decoder":
            assert torch.equal(model.encode(ids, mask), old.encode(ids, mask))
        else:
            memory = torch.randn(3, 15, old.config.d_model)
            assert torch.equal(model.decode(target, memory, None, mask), old.decode(target, memory, None, mask))
    assert_opens(kind, family, model, tmp_path / "saved")


def trained(model, part):
    """Return the names of the parameters that three steps change with a frozen part."""
    freeze(model, part)
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    ids, keep, target = batch(model.config)
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(ids, target, masks.padding(keep))
        functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        optimizer.step()
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def test_training_with_a_frozen_encoder_changes_only_the_decoder(tmp_path):
    _, model = warm("bert", tmp_path)
    changed = trained(model, "encoder")
    parts = {name.split(".")[0] for name in changed}
    assert parts == {"decoder", "target_embedding", "output"}
    assert not {name for name in changed if name.endswith("tokens.weight")}, "the shared matrix is frozen"
    assert {"target_embedding.positions.weight", "output.bias"} <= changed
    assert model.training


@pytest.mark.parametrize(
    ("kind", "part", "moving", "still"),
    [
        ("marian", "decoder", "encoder.", ("decoder.", "output.", "target_embedding.", "source_embedding.tokens")),
        ("bart", "embeddings", "decoder.", ("source_embedding.", "target_embedding.", "output.tokens")),
        ("marian two vocabularies", "encoder", "target_embedding.tokens", ("encoder.", "source_embedding.")),
        ("t5 v1.1", "encoder", "output.tokens", ("encoder.", "source_embedding.", "target_embedding.")),
    ],
)
def test_frozen_parts_do_not_change(kind, part, moving, still, tmp_path):
    make(kind, tmp_path)
    changed = trained(load_seq2seq(tmp_path)[0], part)
    assert any(name.startswith(moving) for name in changed)
    assert not {name for name in changed if name.startswith(still)}


def test_invalid_parts_to_freeze_or_initialize(tmp_path):
    encoder, model = warm("bert", tmp_path)
    freeze(encoder, "embeddings")
    assert {name.split(".")[0] for name, p in encoder.named_parameters() if not p.requires_grad} == {"embedding"}
    with pytest.raises(ValueError, match="parts to freeze: encoder, decoder, embeddings; got 'head'"):
        freeze(model, "head")
    with pytest.raises(ValueError, match="a EncoderModel has these parts to freeze: encoder, embeddings"):
        freeze(encoder, "decoder")
    with pytest.raises(ValueError, match="can be frozen; got a Linear"):
        freeze(torch.nn.Linear(2, 2), "encoder")
    with pytest.raises(ValueError, match="num_layers must be at least 1"):
        reinitialize_half(model, "encoder", 0)
    with pytest.raises(ValueError, match="start_id=999 is outside of the vocabulary"):
        seq2seq_from_encoder(encoder, load_encoder(tmp_path)[1], decoder_num_layers=1, start_id=999, eos_ids=(3,))
