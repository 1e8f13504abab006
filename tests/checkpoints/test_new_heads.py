"""New heads on an encoder of each family: transformers opens the saved model."""

import pytest
import torch
import transformers
from support.models.families import FAMILIES, SPAN_FAMILIES, make

from clearhead import EncoderModel, masks
from clearhead.checkpoints import ENCODER_FAMILIES as OURS
from clearhead.checkpoints import (
    load_classifier,
    load_encoder,
    load_span_classifier,
    new_classifier,
    new_span_classifier,
)


def batch(config):
    ids = torch.randint(3, config.vocab_size, (3, 17))
    keep = torch.arange(17) < torch.tensor([[17], [4], [1]])
    return ids.masked_fill(~keep, config.pad_id), keep


def assert_within(ours, theirs, bound=1e-5):
    # relative to the largest logit: the three logits of a text can nearly cancel, with a normal rounding error
    assert (ours - theirs).norm(dim=-1).max() < bound * theirs.norm(dim=-1).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_new_classifier_opens_in_transformers(name, tmp_path):
    make(name, tmp_path / "body")
    encoder, family = load_encoder(tmp_path / "body")
    model = new_classifier(encoder, family, ["good", "bad", "odd"])
    assert model.encoder.pooler is None
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    ids, keep = batch(encoder.config)
    with torch.no_grad():
        assert torch.equal(model.encoder(ids, masks.padding(keep)), encoder(ids, masks.padding(keep)))
        logits = model(ids, masks.padding(keep))
    family.save_with_head(model, tmp_path / "saved")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert_within(logits, theirs(ids, attention_mask=keep.long()).logits)
    assert theirs.config.id2label == {0: "good", 1: "bad", 2: "odd"}
    again, _ = load_classifier(tmp_path / "saved")
    assert (again.head_config, again.encoder.config) == (model.head_config, model.encoder.config)
    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("name", SPAN_FAMILIES)
def test_new_span_classifier_opens_in_transformers(name, tmp_path):
    make(name, tmp_path / "body")
    encoder, family = load_encoder(tmp_path / "body")
    model = new_span_classifier(encoder, family)
    ids, keep = batch(encoder.config)
    with torch.no_grad():
        begin, end = model(ids, masks.padding(keep))
    family.save_with_head(model, tmp_path / "saved")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long())
    assert_within(begin.masked_fill(~keep, 0), expected.start_logits.masked_fill(~keep, 0))
    assert_within(end.masked_fill(~keep, 0), expected.end_logits.masked_fill(~keep, 0))
    assert load_span_classifier(tmp_path / "saved")[0].head_config == model.head_config


def test_bert_pooler_becomes_the_first_layer_of_the_classifier(tmp_path):
    make("bert", tmp_path / "body")
    encoder, family = load_encoder(tmp_path / "body")
    model = new_classifier(encoder, family, ["a", "b"])
    torch.testing.assert_close(model.head.dense.weight, encoder.pooler.dense.weight, rtol=0, atol=0)
    torch.testing.assert_close(model.head.dense.bias, encoder.pooler.dense.bias, rtol=0, atol=0)
    make("roberta", tmp_path / "other")
    encoder, family = load_encoder(tmp_path / "other")
    assert not torch.equal(new_classifier(encoder, family, ["a"]).head.dense.weight, encoder.pooler.dense.weight)


def tiny(name="bert", **parts):
    sizes = {"vocab_size": 20, "d_model": 8, "ffn_hidden": 8, "num_heads": 2, "num_layers": 1}
    return EncoderModel(OURS[name].make_config(**(sizes | parts)))


def test_new_head_is_random_and_the_encoder_is_copied():
    encoder = tiny(initializer_range=0.05, d_model=64, pooler=True)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    torch.manual_seed(1)
    one, other = (new_classifier(encoder, OURS["bert"], list("abcdefgh")) for _ in range(2))
    assert not torch.equal(one.head.out.weight, other.head.out.weight)
    assert abs(one.head.out.weight.std() - 0.05) < 0.01
    assert not one.head.out.bias.any()
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_problem_type_is_stored(problem, tmp_path):
    model = new_classifier(tiny(), OURS["bert"], ["a", "b"], problem)
    OURS["bert"].save_with_head(model, tmp_path)
    assert load_classifier(tmp_path)[0].head_config.problem == problem
    assert transformers.AutoConfig.from_pretrained(tmp_path).problem_type == problem


def test_invalid_heads_and_labels_are_refused():
    with pytest.raises(ValueError, match="labels must be distinct; got a, a"):
        new_classifier(tiny(), OURS["bert"], ["a", "a"])
    with pytest.raises(ValueError, match="one label or more"):
        new_classifier(tiny(), OURS["bert"], [])
    with pytest.raises(
        ValueError, match="a eurobert checkpoint has no head for question answering. Use one of: .*bert"
    ):
        new_span_classifier(tiny("eurobert"), OURS["eurobert"])
    with pytest.raises(ValueError, match="a bert checkpoint cannot hold positions='rotary'"):
        new_classifier(tiny("modernbert"), OURS["bert"], ["a"])
