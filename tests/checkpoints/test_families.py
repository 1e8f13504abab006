"""Each encoder family equals transformers in all hidden states and heads, and round-trips."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.models.families import FAMILIES, NAMES, SPAN_FAMILIES, make

from clearhead import TextClassifier, TextEncoder, masks
from clearhead.checkpoints import (
    ENCODER_FAMILIES,
    SEQ2SEQ_FAMILIES,
    load_classifier,
    load_encoder,
    load_span_classifier,
)
from clearhead.equations.positions import positions_after_padding, relative_buckets


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """Return (family, folder, transformers' model, our model)."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = make(request.param, folder)
    return request.param, folder, theirs, load_encoder(folder)[0]


def test_every_family_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "guides" / "models.md").read_text(encoding="utf-8").lower()
    for name in (*ENCODER_FAMILIES, *SEQ2SEQ_FAMILIES):
        assert name.replace("_", "") in text.replace("_", ""), f"add {name} to the table of docs/guides/models.md"


def assert_within(ours, theirs, keep, bound=1e-5):
    distance = ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1))[keep]
    assert distance.max() < bound, distance.max()


def batch(lengths, seed, vocabulary, pad_id):
    """Return ids with right padding; texts may contain literal padding tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocabulary, (len(lengths), max(lengths)), generator=generator)
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~keep, pad_id), keep


def layers_of(model):
    parts = []
    hooks = [
        layer.register_forward_hook(lambda _module, _inputs, output: parts.append(output))
        for layer in [model.embedding, *model.encoder.layers]
    ]
    return parts, hooks


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), seed=st.integers(0, 2**16))
@settings(max_examples=12)
def test_all_hidden_states(pair, lengths, seed):
    _, _, theirs, ours = pair
    ids, keep = batch(lengths, seed, ours.config.vocab_size, ours.config.pad_id)
    states, hooks = layers_of(ours)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long(), output_hidden_states=True)
        last = ours(ids, masks.padding(keep))
    for hook in hooks:
        hook.remove()
    assert_within(last, expected.last_hidden_state, keep)
    # transformers' last hidden states are after the final norm
    states[-1] = last
    assert len(states) == len(expected.hidden_states)
    for one, other in zip(states, expected.hidden_states, strict=True):
        assert_within(one, other, keep)
    if ours.pooler is not None:
        torch.testing.assert_close(ours.pooler(last).detach(), expected.pooler_output, atol=1e-5, rtol=1e-5)


def test_literal_padding_token_in_a_text(pair):
    _, _, theirs, ours = pair
    pad = ours.config.pad_id
    ids = torch.tensor([[2, 9, pad, 10, pad, 11, 3], [2, 9, pad, 10, 3, pad, pad]])
    keep = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).last_hidden_state
        assert_within(ours(ids, masks.padding(keep)), expected, keep)


@pytest.mark.slow
def test_saved_model_opens_in_transformers_with_the_same_tensors(pair, tmp_path):
    family, folder, theirs, ours = pair
    _, loaded = load_encoder(folder)
    loaded.save(ours, tmp_path)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = getattr(transformers, f"{NAMES[family]}Model").from_pretrained(tmp_path).eval()
    assert type(transformers.AutoModel.from_pretrained(tmp_path)) is type(again)
    ids, keep = batch([3, 40, 17], 1, ours.config.vocab_size, ours.config.pad_id)
    with torch.no_grad():
        one = again(ids, attention_mask=keep.long()).last_hidden_state
        other = theirs(ids, attention_mask=keep.long()).last_hidden_state
    assert torch.equal(one[keep], other[keep])
    assert load_encoder(tmp_path)[0].config == ours.config


@pytest.mark.parametrize("family", FAMILIES)
def test_classification_heads(family, tmp_path):
    labels = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}
    theirs = make(family, tmp_path / "theirs", "ForSequenceClassification", **labels)
    check_classifier(family, tmp_path, theirs)


def test_modernbert_mean_pooled_classification(tmp_path):
    labels = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}
    theirs = make("modernbert", tmp_path / "theirs", "ForSequenceClassification", classifier_pooling="mean", **labels)
    check_classifier("modernbert", tmp_path, theirs)


def check_classifier(family, tmp_path, theirs):
    ours, loaded = load_classifier(tmp_path / "theirs")
    assert ours.head_config.labels == ("good", "bad", "odd")
    ids, keep = batch([3, 40, 17, 1], 1, ours.encoder.config.vocab_size, ours.encoder.config.pad_id)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).logits
        states = ours(ids, masks.padding(keep))
    assert ((states - expected).norm(dim=1) / expected.norm(dim=1)).max() < 1e-5
    loaded.save_with_head(ours, tmp_path / "saved")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "saved"))
    assert before.keys() == after.keys()
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert torch.equal(again(ids, attention_mask=keep.long()).logits, expected)
    assert again.config.id2label == {0: "good", 1: "bad", 2: "odd"}
    # the same folder loads as an encoder
    with torch.no_grad():
        body = load_encoder(tmp_path / "theirs")[0](ids, masks.padding(keep))
        assert_within(body, ours.encoder(ids, masks.padding(keep)), keep, 1e-6)


@pytest.mark.parametrize("family", SPAN_FAMILIES)
def test_span_heads(family, tmp_path):
    theirs = make(family, tmp_path / "theirs", "ForQuestionAnswering")
    ours, loaded = load_span_classifier(tmp_path / "theirs")
    ids, keep = batch([3, 40, 17, 1], 1, ours.encoder.config.vocab_size, ours.encoder.config.pad_id)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long())
        begin, end = ours(ids, masks.padding(keep))
    for one, other in ((begin, expected.start_logits), (end, expected.end_logits)):
        one, other = one.masked_fill(~keep, 0), other.masked_fill(~keep, 0)
        assert ((one - other).norm(dim=1) / other.norm(dim=1)).max() < 1e-5
    loaded.save_with_head(ours, tmp_path / "saved")
    again = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert torch.equal(again(ids, attention_mask=keep.long()).start_logits, expected.start_logits)
    with pytest.raises(ValueError, match="needs the head of a .*ForSequenceClassification"):
        load_classifier_of_another(tmp_path, family)


def load_classifier_of_another(tmp_path, family):
    (tmp_path / "plain").mkdir()
    make(family, tmp_path / "plain")
    load_classifier(tmp_path / "plain")


def test_modernbert_written_by_transformers_4(tmp_path):
    theirs = make("modernbert", tmp_path, layer_types=["sliding_attention", "full_attention"] * 2)
    data = json.loads((tmp_path / "config.json").read_text())
    five, _ = load_encoder(tmp_path)
    assert five.config.windows == (4, None, 4, None)
    # the same weights with the keys of transformers 4, whose first layer is always global
    for key in ("layer_types", "rope_parameters"):
        del data[key]
    four = data | {"global_attn_every_n_layers": 2, "global_rope_theta": 5000.0, "local_rope_theta": 300.0}
    (tmp_path / "config.json").write_text(json.dumps(four))
    old, _ = load_encoder(tmp_path)
    assert old.config.windows == (None, 4, None, 4)
    assert (old.config.rotary_theta, old.config.local_rotary_theta) == (5000.0, 300.0)
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    ids, keep = batch([40, 5], 2, old.config.vocab_size, 0)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).last_hidden_state
        assert_within(old(ids, masks.padding(keep)), expected, keep)
        assert not torch.allclose(five(ids), old(ids), atol=1e-2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "yarn"),
        ({"hidden_activation": "relu"}, "hidden_activation='relu'"),
        ({"layer_types": ["full_attention", "chunked_attention"] * 2}, "chunked_attention"),
        ({"layer_types": ["full_attention"]}, "Expected one window"),
    ],
)
def test_unsupported_modernbert_configs(tmp_path, changes, words):
    make("modernbert", tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | changes))
    with pytest.raises(ValueError, match=words):
        load_encoder(tmp_path)


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_longest_text_with_position_offset(family, tmp_path):
    make(family, tmp_path)
    ours, _ = load_encoder(tmp_path)
    assert ours.config.max_len == 40
    with pytest.raises(ValueError, match="at most 40"):
        ours(torch.full((1, 41), 5))
    data = json.loads((tmp_path / "config.json").read_text())
    if family == "mpnet":
        (tmp_path / "config.json").write_text(json.dumps(data | {"pad_token_id": 0}))
        with pytest.raises(ValueError, match="pad_token_id"):
            load_encoder(tmp_path)


@given(length=st.integers(1, 300), buckets=st.sampled_from([8, 32, 64]))
@settings(max_examples=15)
def test_relative_buckets_equal_transformers(length, buckets):
    positions = torch.arange(length)
    theirs = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(
        positions[None, :] - positions[:, None], num_buckets=buckets
    )
    assert torch.equal(relative_buckets(length, length, buckets), theirs)


def test_positions_after_padding_skip_padding():
    ids = torch.tensor([[1, 5, 6, 1, 7, 1], [5, 5, 5, 5, 5, 5]])
    assert positions_after_padding(ids, 1).tolist() == [[1, 2, 3, 1, 4, 1], [2, 3, 4, 5, 6, 7]]


@pytest.mark.slow
def test_saved_pooling_opens_in_sentence_transformers(pair, tmp_path):
    from sentence_transformers import SentenceTransformer

    _, folder, _, _ = pair
    texts = ["hello world", "", "the old bridge was closed after the storm", "x"]
    ours = TextEncoder.from_pretrained(folder, precision="float32", device="cpu")
    ours.settings = replace(ours.settings, pooling="cls", normalize=True)
    ours.save_pretrained(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    vectors = ours.encode(texts)
    assert abs(theirs.encode(texts) - vectors).max() < 2e-5
    again = TextEncoder.from_pretrained(tmp_path / "saved", precision="float32", device="cpu")
    assert again.settings == ours.settings
    assert (again.encode(texts) == vectors).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"classifier_activation": "relu"},
        {"classifier_bias": True},
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
        {"norm_bias": True},
        {"attention_bias": True, "mlp_bias": True},
        {"norm_bias": True, "mlp_bias": True},
    ],
)
def test_modernbert_heads_of_every_kind(tmp_path, changes):
    labels = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}
    theirs = make("modernbert", tmp_path / "theirs", "ForSequenceClassification", **changes, **labels)
    check_classifier("modernbert", tmp_path, theirs)


def test_invalid_heads_are_refused(tmp_path):
    make("bert", tmp_path, "ForSequenceClassification")
    data = json.loads((tmp_path / "config.json").read_text())
    for changes, words in (
        ({"id2label": ["a", "b"]}, "id2label="),
        ({"classifier_dropout": "much"}, "classifier_dropout='much'"),
        ({"problem_type": "guessing"}, "problem_type='guessing'"),
        ({"id2label": {"0": "a"}}, "names 1 labels, but the head has 2"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(data | changes))
        with pytest.raises(ValueError, match=words):
            load_classifier(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(data | {"problem_type": "regression"}))
    with pytest.raises(ValueError, match="no probabilities"):
        TextClassifier.from_pretrained(tmp_path)


def test_null_is_the_default_window_of_modernbert(tmp_path):
    make("modernbert", tmp_path, num_hidden_layers=2)
    data = json.loads((tmp_path / "config.json").read_text())
    for value in (None, 128):
        (tmp_path / "config.json").write_text(json.dumps(data | {"local_attention": value}))
        encoder, _ = load_encoder(tmp_path)
        assert encoder.config.windows[1] == 64


def test_pooling_of_a_head_that_is_a_list(tmp_path):
    make("modernbert", tmp_path, "ForSequenceClassification", num_hidden_layers=1)
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | {"classifier_pooling": ["mean"]}))
    with pytest.raises(ValueError, match=r"config.json has classifier_pooling=\['mean'\], which is not supported"):
        load_classifier(tmp_path)


def test_rotary_base_beyond_a_float(tmp_path):
    make("nomic_bert", tmp_path, num_hidden_layers=1)
    data = json.loads((tmp_path / "config.json").read_text())
    data["rope_parameters"]["rope_theta"] = 10**400
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"config.json.*rope_theta.*expected a number above 0"):
        load_encoder(tmp_path)
