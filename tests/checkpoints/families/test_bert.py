"""BERT equals transformers in every layer, and transformers loads the saved model."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.models.tiny import make_bert
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM, BertForSequenceClassification

from clearhead import EncoderConfig, EncoderModel, TextEncoder, masks
from clearhead.checkpoints import ENCODER_FAMILIES, load_encoder

BOUND = 1e-5


def hidden_states(model, ids, mask=None, token_types=None):
    """Return the output of the embedding and of each layer."""
    records = []
    parts = [model.embedding, *model.encoder.layers]
    hooks = [part.register_forward_hook(lambda _module, _inputs, output: records.append(output)) for part in parts]
    with torch.no_grad():
        model(ids, mask, token_types)
    for hook in hooks:
        hook.remove()
    return records


def assert_within(ours, theirs, keep=None):
    """Compare the vector of each token, to 1e-5 of its norm."""
    distance = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
    if keep is not None:
        distance = distance[keep]
    assert distance.max() < BOUND, distance.max()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 3},
        {"hidden_act": "gelu_new", "pooler": False},
    ],
)
def test_all_hidden_states_equal_transformers(tmp_path, changes):
    folder = make_bert(tmp_path, **changes)
    theirs = AutoModel.from_pretrained(folder, add_pooling_layer=changes.get("pooler", True)).eval()
    ours, _ = load_encoder(folder)
    types = changes.get("type_vocab_size", 2)

    @given(st.lists(st.integers(1, 24), min_size=1, max_size=4), st.integers(0, 2**16))
    @settings(max_examples=15)
    def check(lengths, seed):
        generator = torch.Generator().manual_seed(seed)
        shape = (len(lengths), max(lengths))
        ids = torch.randint(ours.config.vocab_size, shape, generator=generator)
        token_types = torch.randint(types, shape, generator=generator)
        keep = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
        with torch.no_grad():
            expected = theirs(ids, attention_mask=keep.long(), token_type_ids=token_types, output_hidden_states=True)
        states = hidden_states(ours, ids, masks.padding(keep), token_types)
        assert len(states) == len(expected.hidden_states) == 4
        for one, other in zip(states, expected.hidden_states, strict=True):
            assert_within(one, other, keep)
        if ours.pooler is not None:
            assert_within(ours.pooler(states[-1]).detach(), expected.pooler_output)

    check()


@pytest.mark.parametrize("length", [1, 24])
def test_minimum_and_maximum_length_without_mask(tiny_bert, length):
    theirs, (ours, _) = AutoModel.from_pretrained(tiny_bert).eval(), load_encoder(tiny_bert)
    ids = torch.randint(60, (2, length))
    with torch.no_grad():
        assert_within(ours(ids), theirs(ids).last_hidden_state)
    with pytest.raises(ValueError, match="25 tokens long; this model takes at most 24"):
        ours(torch.zeros(1, 25, dtype=torch.long))


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=20)
def test_left_padding_does_not_change_the_result(tiny_bert, length, padding, seed):
    ours, _ = load_encoder(tiny_bert)
    ids = torch.randint(60, (1, length), generator=torch.Generator().manual_seed(seed))
    padded = torch.cat([torch.zeros(1, padding, dtype=torch.long), ids], dim=1)
    keep = (torch.arange(length + padding) >= padding)[None]
    with torch.no_grad():
        assert_within(ours(padded, masks.padding(keep))[:, padding:], ours(ids))


def test_saved_model_opens_in_transformers_with_the_same_tensors(tiny_bert, tmp_path):
    TextEncoder.from_pretrained(tiny_bert, precision="float32").save_pretrained(tmp_path / "saved")
    before, after = load_file(tiny_bert / "model.safetensors"), load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    theirs = AutoModel.from_pretrained(tmp_path / "saved").eval()
    original = AutoModel.from_pretrained(tiny_bert).eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "saved")(
        ["hello world", "a test."], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        assert torch.equal(theirs(**tokens).last_hidden_state, original(**tokens).last_hidden_state)
    written, read = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "saved", tiny_bert))
    same = {key for key in written if key not in ("architectures",)}
    assert {key: written[key] for key in same} == {key: read[key] for key in same}


@pytest.mark.slow
def test_sentence_transformers_folder_round_trip(tiny_bert, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    texts = [
        "hello world",
        "",
        "the old bridge was closed after the storm",
        "a b c d e f g h i j k l m n o p q r s t u v",
    ]
    for pooling, normalize, prompts, default in (
        ("mean", True, {}, None),
        ("cls", False, {"query": "query : ", "passage": "passage : "}, "query"),
        ("max", True, {"query": "query "}, None),
    ):
        modules = [Transformer(str(tiny_bert)), Pooling(32, pooling), *([Normalize()] if normalize else [])]
        theirs = SentenceTransformer(modules=modules, prompts=prompts, default_prompt_name=default, device="cpu")
        theirs.max_seq_length = 16
        theirs.save(str(tmp_path / pooling))
        ours = TextEncoder.from_pretrained(tmp_path / pooling, precision="float32")
        assert ours.settings.pooling == pooling
        assert ours.settings.max_length == 16
        np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=2e-5)
        for name in prompts:
            expected = theirs.encode(texts, prompt_name=name)
            np.testing.assert_allclose(ours.encode(texts, prompt=name), expected, atol=2e-5)
        np.testing.assert_allclose(
            ours.encode(texts, prompt="test ", normalize=True, truncate_dim=5),
            theirs.encode(texts, prompt="test ", normalize_embeddings=True, truncate_dim=5),
            atol=2e-5,
        )
        ours.save_pretrained(tmp_path / f"{pooling}-again")
        again = SentenceTransformer(str(tmp_path / f"{pooling}-again"), device="cpu")
        np.testing.assert_allclose(again.encode(texts), theirs.encode(texts), atol=2e-6)
        assert again.max_seq_length == 16
        assert TextEncoder.from_pretrained(tmp_path / f"{pooling}-again").settings == ours.settings


@pytest.mark.slow
def test_pooling_without_the_prompt(tiny_bert, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    for pooling in ("mean", "cls", "max"):
        modules = [Transformer(str(tiny_bert)), Pooling(32, pooling, include_prompt=False)]
        theirs = SentenceTransformer(modules=modules, prompts={"query": "query a : "}, device="cpu")
        theirs.save(str(tmp_path / pooling))
        ours = TextEncoder.from_pretrained(tmp_path / pooling, precision="float32")
        expected = theirs.encode(["hello world", "test", ""], prompt_name="query")
        np.testing.assert_allclose(ours.encode(["hello world", "test", ""], prompt="query"), expected, atol=2e-5)


def test_per_token_vectors(tiny_bert):
    from sentence_transformers import SentenceTransformer

    ours = TextEncoder.from_pretrained(tiny_bert, precision="float32")
    texts = ["hello world", "", "the old bridge"]
    vectors = ours.encode(texts, pooling="tokens")
    expected = SentenceTransformer(str(tiny_bert), device="cpu").encode(texts, output_value="token_embeddings")
    assert [len(row) for row in vectors] == [4, 2, 5]
    for one, other in zip(vectors, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), atol=2e-5)


def test_shards_and_heads(tmp_path):
    for model_class in (BertForMaskedLM, BertForSequenceClassification):
        folder = tmp_path / model_class.__name__
        folder.mkdir()
        make_bert(folder, model_class=model_class)
        theirs = model_class.from_pretrained(folder).eval()
        ours, _ = load_encoder(folder)
        ids = torch.randint(60, (2, 9))
        with torch.no_grad():
            assert_within(ours(ids), theirs.bert(ids).last_hidden_state)
        theirs.save_pretrained(tmp_path / "sharded" / model_class.__name__, max_shard_size="10KB")
        (folder / "config.json").replace(tmp_path / "sharded" / model_class.__name__ / "config.json")
        sharded, _ = load_encoder(tmp_path / "sharded" / model_class.__name__)
        with torch.no_grad():
            assert torch.equal(sharded(ids), ours(ids))


def test_half_precision_files_are_read_in_float32(tmp_path, tiny_bert):
    AutoModel.from_pretrained(tiny_bert, dtype=torch.float16).save_pretrained(tmp_path)
    ours, _ = load_encoder(tmp_path)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}


def test_config_round_trip_and_unsupported_fields():
    bert = ENCODER_FAMILIES["bert"]
    config = EncoderConfig(
        vocab_size=50, d_model=16, num_heads=2, ffn_hidden=32, num_layers=1, max_len=9, positions="learned",
        num_token_types=2, embedding_norm=True, activation="gelu_tanh", eps=1e-7, initializer_range=0.02,
    )  # fmt: skip
    written = bert.write_config(config)
    assert bert.read_config(written, [], "config.json") == config
    for field, value in (("positions", "rotary"), ("norm_order", "pre"), ("layer_drop", 0.5)):
        changed = EncoderConfig(**(vars(config) | {field: value}))
        with pytest.raises(ValueError, match=f"cannot hold {field}={value!r}"):
            bert.write_config(changed)


def test_initial_weights_follow_the_paper():
    sizes = {"vocab_size": 3000, "d_model": 64, "num_heads": 4, "ffn_hidden": 256, "num_layers": 2}
    bert = EncoderModel(EncoderConfig(**sizes, initializer_range=0.02, pooler=True))
    paper = EncoderModel(EncoderConfig(**sizes))
    for name, parameter in bert.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter) * name.endswith("weight"))
        elif parameter.ndim == 1:
            assert not parameter.any()
        else:
            assert abs(parameter.std().item() - 0.02) < 0.001, name
    assert abs(paper.embedding.tokens.weight.std().item() - 64**-0.5) < 0.002
    bound = (6 / (64 + 256)) ** 0.5
    largest = paper.encoder.layers[0].feedforward.inner.weight.abs().max().item()
    assert 0.95 * bound < largest <= bound
