"""jina-embeddings-v2: all hidden states and heads equal a reference that is written out in tests/support."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.models import jina_bert

from clearhead import TextClassifier, TextEncoder, masks, verify, watch
from clearhead.checkpoints import load_classifier, load_encoder, load_masked_lm, new_masked_lm, save_masked_lm
from clearhead.equations.positions import alibi_slopes, linear_biases
from clearhead.inspection.verify import checks


def assert_within(ours, theirs, bound=1e-5):
    assert ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max() < bound


def check(data, folder):
    heads = data.draw(st.integers(1, 6))
    changes = {
        "num_attention_heads": heads,
        "hidden_size": heads * data.draw(st.integers(1, 9)) + heads,
        "intermediate_size": data.draw(st.integers(1, 29)),
        "num_hidden_layers": data.draw(st.integers(1, 4)),
        "type_vocab_size": data.draw(st.integers(1, 3)),
        "feed_forward_type": data.draw(st.sampled_from(["geglu", "reglu"])),
        "layer_norm_eps": data.draw(st.sampled_from([1e-12, 1e-3])),
    }
    # larger weights amplify rounding beyond the bound
    config, tensors = jina_bert.make(folder, seed=data.draw(st.integers(0, 2**16)), std=0.15, **changes)
    torch.manual_seed(0)
    ours, family = load_encoder(folder)
    ids, keep = torch.randint(config["vocab_size"], (3, 19)), torch.arange(19) < torch.tensor([[19], [7], [1]])
    types = torch.randint(config["type_vocab_size"], (3, 19))
    states = []
    hooks = [
        layer.register_forward_hook(lambda _module, _inputs, output: states.append(output))
        for layer in (ours.embedding, *ours.encoder.layers)
    ]
    with torch.no_grad():
        last = ours(ids, masks.padding(keep), types)
    for hook in hooks:
        hook.remove()
    expected = jina_bert.hidden_states(config, tensors, ids, keep, types)
    for one, other in zip(states, expected, strict=True):
        assert_within(one[keep], other[keep])
    assert_within(ours.pooler(last).detach(), jina_bert.pooled(tensors, expected[-1]))
    family.save(ours, folder / "saved")
    saved = load_file(folder / "saved" / "model.safetensors")
    assert saved.keys() == tensors.keys()
    assert all(torch.equal(saved[name], tensors[name]) for name in tensors)
    again, _ = load_encoder(folder / "saved")
    assert again.config == ours.config
    # the publisher's code opens the folder, since the model type alone means BERT
    written = json.loads((folder / "saved" / "config.json").read_text())
    assert (written["model_type"], written["position_embedding_type"]) == ("bert", "alibi")
    assert written["auto_map"]["AutoModel"] == "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"
    # and computes the same from it
    for one, other in zip(jina_bert.hidden_states(written, saved, ids, keep, types), expected, strict=True):
        assert torch.equal(one, other)


@given(data=st.data())
@settings(max_examples=5)
def test_random_configs(data, tmp_path):
    check(data, tmp_path)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=40)
def test_many_random_configs(data, tmp_path):
    check(data, tmp_path)


@given(heads=st.integers(1, 40))
def test_slopes_equal_the_authors(heads):
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), torch.tensor(jina_bert.slopes(heads)))


def test_biases_are_symmetric_and_end_at_the_last_key():
    bias = linear_biases(torch.tensor(alibi_slopes(4)), 6, 6)
    assert torch.equal(bias, bias.transpose(2, 3))
    assert torch.equal(linear_biases(torch.tensor(alibi_slopes(4)), 2, 6), bias[:, :, 4:])
    assert bias[0, 0, 0].tolist() == [0.0, -0.25, -0.5, -0.75, -1.0, -1.25]


def test_attention_weights_are_visible(tmp_path):
    config, tensors = jina_bert.make(tmp_path, num_hidden_layers=1)
    ours, _ = load_encoder(tmp_path)
    ids, heads = torch.randint(config["vocab_size"], (1, 9)), config["num_attention_heads"]
    x = jina_bert.hidden_states(config, tensors, ids, ids >= 0)[0]
    q, k = (
        torch.nn.functional.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
        .view(1, 9, heads, -1)
        .transpose(1, 2)
        for name in ("encoder.layer.0.attention.self.query", "encoder.layer.0.attention.self.key")
    )
    distance = (torch.arange(9)[:, None] - torch.arange(9)[None, :]).abs()
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    expected = (scores - torch.tensor(jina_bert.slopes(heads))[:, None, None] * distance).softmax(dim=-1)
    with torch.no_grad(), watch(ours) as records:
        ours(ids)
    torch.testing.assert_close(records.records[0].values, expected, atol=1e-5, rtol=1e-5)


def test_classifier(tmp_path):
    config, tensors = jina_bert.make(tmp_path, head=True)
    ours, family = load_classifier(tmp_path)
    ids, keep = torch.randint(config["vocab_size"], (2, 9)), torch.arange(9) < torch.tensor([[9], [4]])
    hidden = jina_bert.hidden_states(config, tensors, ids, keep)[-1]
    logits = torch.nn.functional.linear(
        jina_bert.pooled(tensors, hidden), tensors["classifier.weight"], tensors["classifier.bias"]
    )
    with torch.no_grad():
        assert_within(ours(ids, masks.padding(keep)), logits)
    family.save_with_head(ours, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(torch.equal(saved[name], tensors[name]) for name in tensors)
    assert TextClassifier.from_pretrained(tmp_path, device="cpu").classify("hello world").label in "abc"


def test_masked_language_model(tmp_path):
    config, tensors = jina_bert.make(tmp_path)
    encoder, family = load_encoder(tmp_path)
    model = new_masked_lm(encoder, family)
    save_masked_lm(model, family, tmp_path / "saved")
    again, _ = load_masked_lm(tmp_path / "saved")
    ids = torch.randint(50, (2, 9))
    with torch.no_grad():
        assert torch.equal(again(ids), model(ids))
    saved, head = load_file(tmp_path / "saved" / "model.safetensors"), "cls.predictions"
    x = jina_bert.hidden_states(config, tensors, ids, ids >= 0)[-1]
    x = torch.nn.functional.linear(x, saved[f"{head}.transform.dense.weight"], saved[f"{head}.transform.dense.bias"])
    norm = (saved[f"{head}.transform.LayerNorm.{name}"] for name in ("weight", "bias"))
    x = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), x.shape[-1:], *norm, config["layer_norm_eps"])
    (table,) = (saved[name] for name in saved if name.endswith("word_embeddings.weight"))
    with torch.no_grad():
        assert_within(model(ids), x @ table.T + saved[f"{head}.bias"])


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_vectors_do_not_depend_on_the_batch(precision, tmp_path):
    config, tensors = jina_bert.make(tmp_path, hidden_size=48, intermediate_size=32)
    encoder = TextEncoder.from_pretrained(tmp_path, precision=precision, device="cpu")
    texts = ["hello world", "the old bridge was closed after the storm", "x", "this is a test, hello"]
    together = encoder.encode(texts)
    ids = torch.tensor([encoder.tokenize([texts[1]])[0].ids])
    expected = jina_bert.hidden_states(config, tensors, ids, torch.ones_like(ids, dtype=torch.bool))[-1].mean(dim=1)
    bound = 1e-5 if precision == "float32" else 0.05
    assert_within(torch.from_numpy(together[1:2]), expected, bound)
    alone = torch.stack([torch.from_numpy(encoder.encode(text)) for text in texts])
    assert_within(torch.from_numpy(together), alone, 1e-5)


def test_verify_holds_without_a_reference(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "has_compiler", lambda: False)
    jina_bert.make(tmp_path, std=0.1)
    certificate = verify(tmp_path)
    assert certificate.holds, [check.name for check in certificate.checks if not check.holds]
    assert "transformers has no jina_bert model" in str(certificate.checks)
    with pytest.raises(ValueError, match="transformers has no jina_bert model; leave the reference out"):
        verify(tmp_path, reference="transformers")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"feed_forward_type": "original"}, "feed_forward_type='original' is not supported. Use one of: geglu, reglu"),
        ({"alibi_starting_size": 512}, "alibi_starting_size=512, which is unknown"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"num_attention_heads": 5}, "d_model must be divisible by num_heads"),
    ],
)
def test_unsupported_settings_are_refused(changes, words, tmp_path):
    jina_bert.make(tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | changes))
    with pytest.raises(ValueError, match=words):
        load_encoder(tmp_path)
