"""Masked language models of each family equal transformers, and round-trip."""

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.models.families import FAMILIES, NAMES, make

from clearhead import EncoderModel, MaskedLanguageModel, masks
from clearhead.checkpoints import ENCODER_FAMILIES as OURS
from clearhead.checkpoints import load_encoder, load_masked_lm, new_masked_lm, save_masked_lm
from clearhead.models.freezing import freeze

transformers.utils.logging.disable_progress_bar()


def batch(config):
    ids = torch.randint(3, config.vocab_size, (3, 17))
    keep = torch.arange(17) < torch.tensor([[17], [4], [1]])
    return ids.masked_fill(~keep, config.pad_id), keep


def assert_within(ours, theirs, bound=1e-5):
    assert ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max() < bound


def opened(family, folder):
    return getattr(transformers, f"{NAMES[family]}ForMaskedLM").from_pretrained(folder).eval()


def lively(family, folder, **changes):
    """Save and return transformers' model with a non-zero output bias."""
    theirs = make(family, folder, "ForMaskedLM", **changes)
    with torch.no_grad():
        if theirs.get_output_embeddings().bias is not None:
            theirs.get_output_embeddings().bias.normal_()
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_round_trip(family, tmp_path):
    theirs = lively(family, tmp_path / "theirs")
    ours, loaded = load_masked_lm(tmp_path / "theirs")
    ids, keep = batch(ours.encoder.config)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).logits
        assert_within(ours(ids, masks.padding(keep))[keep], expected[keep])
        hidden = ours.hidden(ids, masks.padding(keep))
    parts = torch.nn.functional.linear(hidden, ours.output.tokens.weight, ours.output.bias)
    assert_within(parts.detach()[keep], expected[keep])
    assert (ours.output.tokens is ours.encoder.embedding.tokens) == (family != "eurobert")
    assert not ours.training
    save_masked_lm(ours, loaded, tmp_path / "saved")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "saved"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with torch.no_grad():
        assert torch.equal(opened(family, tmp_path / "saved")(ids, attention_mask=keep.long()).logits, expected)
    auto = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "saved")
    assert type(auto) is type(theirs)
    # the same folder loads as an encoder
    with torch.no_grad():
        body = load_encoder(tmp_path / "saved")[0](ids, masks.padding(keep))
        assert torch.equal(body, ours.encoder(ids, masks.padding(keep)))


def first_weight(model):
    """Return the first weight of a head: EuroBERT's has only the output."""
    return model.head.dense.weight if hasattr(model.head, "dense") else model.output.tokens.weight


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, "Model") for family in FAMILIES),
        ("bert", "ForSequenceClassification"),
        ("modernbert", "ForSequenceClassification"),
    ],
)
def test_missing_head_is_initialized_with_a_warning(family, kind, tmp_path, caplog):
    make(family, tmp_path / "theirs", kind)
    encoder, loaded = load_encoder(tmp_path / "theirs")
    torch.manual_seed(1)
    with caplog.at_level(logging.WARNING):
        ours, _ = load_masked_lm(tmp_path / "theirs")
    assert "has no head for masked language modeling; a new one is initialized at random" in caplog.text
    torch.manual_seed(1)
    assert torch.equal(first_weight(load_masked_lm(tmp_path / "theirs")[0]), first_weight(ours))
    torch.manual_seed(2)
    other = new_masked_lm(encoder, loaded)
    assert not torch.equal(first_weight(other), first_weight(ours))
    assert abs(first_weight(ours).std() / encoder.config.initializer_range - 1) < 0.1, "the config's initializer_range"
    ids, keep = batch(encoder.config)
    with torch.no_grad():
        assert torch.equal(ours.encoder(ids, masks.padding(keep)), encoder(ids, masks.padding(keep)))
        assert torch.equal(ours.encoder(ids), other.encoder(ids))
    save_masked_lm(ours, loaded, tmp_path / "saved")
    with torch.no_grad():
        expected = opened(family, tmp_path / "saved")(ids, attention_mask=keep.long()).logits
        assert_within(ours(ids, masks.padding(keep))[keep], expected[keep])
    again, _ = load_masked_lm(tmp_path / "saved")
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("modernbert", {"classifier_activation": "silu"}),
        ("modernbert", {"classifier_bias": True}),
        ("modernbert", {"norm_bias": True, "attention_bias": True, "mlp_bias": True}),
        ("bert", {"hidden_act": "gelu_new"}),
        ("eurobert", {"mlp_bias": True}),
        ("eurobert", {"tie_word_embeddings": True}),
        ("distilbert", {"activation": "relu"}),
        ("roberta", {"hidden_act": "relu"}),
    ],
)
def test_heads_of_every_kind(family, changes, tmp_path):
    theirs = lively(family, tmp_path / "theirs", **changes)
    ours, loaded = load_masked_lm(tmp_path / "theirs")
    ids, keep = batch(ours.encoder.config)
    save_masked_lm(ours, loaded, tmp_path / "saved")
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).logits[keep]
        assert_within(ours(ids, masks.padding(keep))[keep], expected)
        assert_within(opened(family, tmp_path / "saved")(ids, attention_mask=keep.long()).logits[keep], expected)


def test_modernbert_without_output_bias(tmp_path):
    theirs = make("modernbert", tmp_path / "theirs", "ForMaskedLM", decoder_bias=False)
    ours, loaded = load_masked_lm(tmp_path / "theirs")
    assert ours.output.bias is None
    save_masked_lm(ours, loaded, tmp_path / "saved")
    ids, keep = batch(ours.encoder.config)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).logits[keep]
        assert_within(opened("modernbert", tmp_path / "saved")(ids, attention_mask=keep.long()).logits[keep], expected)


def changed(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_file_may_repeat_a_tied_output(family, tmp_path):
    lively(family, tmp_path)
    ours, loaded = load_masked_lm(tmp_path)
    form, embedding = loaded.masked_lm, ours.output.tokens.weight.detach()
    bias = ours.output.bias.detach()
    changed(
        tmp_path, lambda tensors: tensors.update({f"{form.decoder}.weight": embedding, f"{form.decoder}.bias": bias})
    )
    again, _ = load_masked_lm(tmp_path)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())
    load_encoder(tmp_path)
    changed(tmp_path, lambda tensors: tensors.update({f"{form.decoder}.weight": embedding + 1}))
    with pytest.raises(ValueError, match=r"\.weight is not the token embedding"):
        load_masked_lm(tmp_path)


def test_broken_head_is_refused(tmp_path):
    lively("bert", tmp_path)
    changed(tmp_path, lambda tensors: tensors.update({"cls.predictions.decoder.bias": torch.zeros(75)}))
    with pytest.raises(ValueError, match=r"tensors cls\.predictions\.bias and cls\.predictions\.decoder\.bias differ"):
        load_masked_lm(tmp_path)
    for name in ("cls.predictions.decoder.bias", "cls.predictions.transform.dense.weight"):
        changed(tmp_path, lambda tensors, name=name: tensors.pop(name))
    with pytest.raises(ValueError, match=r"tensor cls\.predictions\.transform\.dense\.weight is missing"):
        load_masked_lm(tmp_path)
    lively("modernbert", tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    for change, words in (
        ({"decoder_bias": 1}, "true or false"),
        ({"classifier_activation": "x"}, "='x', which is not"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(data | change))
        with pytest.raises(ValueError, match=words):
            load_masked_lm(tmp_path)


def test_unsupported_head_is_refused(tmp_path):
    sizes = {"vocab_size": 20, "d_model": 8, "ffn_hidden": 8, "num_heads": 2, "num_layers": 1}
    config = OURS["bert"].make_config(**sizes)
    for head in ({"activation": "relu"}, {"dense_bias": False}, {"output_bias": False}):
        with pytest.raises(ValueError, match="a bert checkpoint cannot hold a head with"):
            save_masked_lm(MaskedLanguageModel(config, **head), OURS["bert"], tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(ValueError, match="a roberta checkpoint cannot hold"):
        new_masked_lm(EncoderModel(config), OURS["roberta"])


def test_frozen_embedding_freezes_the_output():
    sizes = {"vocab_size": 20, "d_model": 8, "ffn_hidden": 8, "num_heads": 2, "num_layers": 1}
    model = new_masked_lm(EncoderModel(OURS["bert"].make_config(**sizes, pooler=True)), OURS["bert"])
    freeze(model, "embeddings")
    model(torch.randint(20, (2, 5))).sum().backward()
    moving = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not {name for name in moving if "embedding" in name}
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    assert {"head.dense.weight", "output.bias"} <= moving
