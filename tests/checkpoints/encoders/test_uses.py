"""What else works with each family: attention weights, lower precision and classification."""

import json

import numpy as np
import pytest
import torch
from support.models.families import make
from support.models.random_configs import KEYS, batch, theirs

from clearhead import TextClassifier, TextEncoder, masks, traced, watch
from clearhead.checkpoints import load_encoder
from clearhead.inspection.report.collect import collect_checkpoint

TEXTS = ["hello world", "the old bridge was closed after the storm", "x", "", "this is the test"] * 3


@pytest.mark.parametrize("family", KEYS)
@torch.no_grad()
def test_attention_weights_equal_those_of_transformers(family, tmp_path):
    model = theirs(family, "Model", 5, tmp_path, attn_implementation="eager")
    ours, _ = load_encoder(tmp_path)
    ids, keep = batch(ours.config.pad_id)
    expected = model(ids, attention_mask=keep.long(), output_attentions=True).attentions
    with watch(ours) as padded:
        ours(ids, masks.padding(keep))
    with watch(ours) as packed:
        ours(ids[keep][None], masks.packed(keep.sum(1).tolist()))
    assert len(padded.records) == len(packed.records) == len(expected) == ours.config.num_layers
    assert [record.layer for record in padded.records] == list(range(ours.config.num_layers))
    real = keep[:, None, :, None]
    for one, other, weights in zip(padded.records, packed.records, expected, strict=True):
        torch.testing.assert_close(one.values * real, weights * real, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(other.values, weights * real, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("family", KEYS)
def test_lower_precision_is_close(family, precision, tmp_path):
    make(family, tmp_path)
    exact = TextEncoder.from_pretrained(tmp_path, precision="float32", device="cpu").encode(TEXTS, normalize=True)
    lower = TextEncoder.from_pretrained(tmp_path, precision=precision, device="cpu").encode(TEXTS, normalize=True)
    assert (exact * lower).sum(axis=1).min() > 0.99
    assert not np.array_equal(exact, lower)


@pytest.mark.parametrize("family", KEYS)
def test_classifier_equals_transformers(family, tmp_path):
    labels = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}
    model = make(family, tmp_path, "ForSequenceClassification", **labels)
    ours = TextClassifier.from_pretrained(tmp_path, precision="float32", device="cpu")
    for text in TEXTS[:5]:
        ids = torch.tensor([ours.tokenizer.encode([text])[0].ids])
        with torch.no_grad():
            expected = model(ids).logits.softmax(dim=-1)[0]
        (result,) = ours.classify([text])
        assert result.label == model.config.id2label[int(expected.argmax())]
        assert result.probability == pytest.approx(float(expected.max()), abs=1e-5)


@pytest.mark.parametrize("family", KEYS)
def test_unknown_key_is_refused_by_name(family, tmp_path):
    make(family, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"extra_gates": 3}))
    with pytest.raises(ValueError, match="has extra_gates=3, which is unknown and may change the result"):
        load_encoder(tmp_path)


def test_steps_of_disentangled_attention_are_seen(tmp_path):
    make("deberta-v2", tmp_path, conv_kernel_size=3, conv_act="gelu")
    encoder = TextEncoder.from_pretrained(tmp_path, precision="float32", device="cpu")
    ids = torch.tensor([encoder.tokenize(["hello world"])[0].ids])
    with watch(encoder.model) as attention:
        encoder.model(ids)
    page = collect_checkpoint(str(tmp_path), "hello world")
    assert [layer["layer"] for layer in page["attention"]] == list(range(len(attention.records)))
    shapes = {step["path"]: step["named_shape"] for step in page["steps"]}
    assert shapes["encoder.layers.1.attention.distance_scores"] == "[B=1, H=4, Lq=4, Lk=4]"
    assert shapes["encoder.convolution.activation"] == "[B=1, L=4, D=32]"
    steps = traced(encoder.model, lambda: encoder.model(ids)).steps
    assert len(steps) + 1 == len(page["steps"])  # the page has pooling, too
    with pytest.raises(ValueError, match="packed texts cannot be traced. Trace one text"):
        traced(encoder.model, lambda: encoder.model(torch.cat([ids, ids], 1), masks.packed([4, 4])), values=True)


@pytest.mark.slow
def test_shared_layers_are_seen_one_by_one(tmp_path):
    make("albert", tmp_path, inner_group_num=2)
    encoder = TextEncoder.from_pretrained(tmp_path, precision="bfloat16", device="cpu")
    with watch(encoder, layers=[1, 6], heads=[2]) as some:
        encoder.encode(TEXTS)
    with watch(encoder, heads=[2]) as all_of_them:
        encoder.encode(TEXTS)
    assert {record.layer for record in some.records} == {1, 6}
    for record in some.records:
        (same,) = [
            other for other in all_of_them.records if (other.layer, other.lengths) == (record.layer, record.lengths)
        ]
        assert torch.equal(record.values, same.values)
    page = collect_checkpoint(str(tmp_path), "hello world")
    assert [layer["layer"] for layer in page["attention"]] == list(range(8))
    assert sum(step["path"] == "encoder.layers.0.attention.softmax" for step in page["steps"]) == 2
