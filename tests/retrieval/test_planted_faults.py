"""Every planted fault in a model or a setting is found, and the message names its cause.

MODELS has faults of the model that opens an index, and SETTINGS faults of the options that append to one.
test_against.py has those of other systems.
"""

import dataclasses
import json
import shutil

import pytest
import torch
from support.data.indexes import DOCUMENTS
from support.models.first_code import first_code, stacked
from support.models.int8 import needs_kernels

from clearhead import Index, TextEncoder
from clearhead.io import hub
from clearhead.retrieval.build import BuildOptions, ListedTexts, append_to_index
from clearhead.retrieval.identity import OtherModelError
from clearhead.runtime.vectors import EncodeOptions


def load(folder, **options):
    return TextEncoder.from_pretrained(folder, **{"precision": "float32", "device": "cpu"} | options)


def edit(name, **changes):
    """A fault in a JSON file of the model's folder."""

    def fault(folder):
        data = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(data | changes))
        return load(folder)

    return fault


def replace_token(old, new):
    """A fault in the vocabulary."""

    def fault(folder):
        text = (folder / "tokenizer.json").read_text()
        assert f'"{old}"' in text
        (folder / "tokenizer.json").write_text(text.replace(f'"{old}"', f'"{new}"'))
        return load(folder)

    return fault


def weights(change):
    """A fault in the weights."""

    def fault(folder):
        encoder = load(folder)
        with torch.no_grad():
            change(list(encoder.model.parameters()))
        return encoder

    return fault


def settings(**changes):
    """A fault in the settings of sentence-transformers."""

    def fault(folder):
        encoder = load(folder)
        encoder.settings = dataclasses.replace(encoder.settings, **changes)
        return encoder

    return fault


BY_WEIGHTS, TOKENIZER = "made by a model with other weights", "made by a model with other tokenizer"
MODELS = {
    "fine-tuned a little": (weights(lambda every: every[-3].mul_(1.001)), BY_WEIGHTS),
    "fine-tuned": (weights(lambda every: every[-3].mul_(1.5)), BY_WEIGHTS),
    "one weight": (weights(lambda every: every[0][0, 0].add_(1e-3)), BY_WEIGHTS),
    "pooling cls": (settings(pooling="cls"), "other default pooling: 'mean' in the index, 'cls'"),
    "pooling max": (settings(pooling="max"), "other default pooling: 'mean' in the index, 'max'"),
    "normalized": (settings(normalize=True), "other default normalization: False in the index, True"),
    "truncated": (settings(max_length=12), "other default maximum length: 24 in the index, 12"),
    "prompts": (settings(prompts={"query": "query "}), "other prompts"),
    "default prompt": (settings(prompts={}, default_prompt="a"), "other default prompt: None in the index, 'a'"),
    "prompt not pooled": (settings(pool_prompt=False), "other pooling of the prompt"),
    "word of the vocabulary": (replace_token("hello", "hallo"), TOKENIZER),
    "unknown token": (replace_token("[UNK]", "[MISS]"), f"{TOKENIZER}|unk"),
    "case": (edit("tokenizer_config.json", do_lower_case=False), TOKENIZER),
    "accents": (edit("tokenizer_config.json", strip_accents=False), TOKENIZER),
    "spelled special tokens": (edit("tokenizer_config.json", split_special_tokens=True), TOKENIZER),
    "side of the truncation": (edit("tokenizer_config.json", truncation_side="left"), "truncation_side='left'"),
    "activation": (
        edit("config.json", hidden_act="relu"),
        "another architecture: activation is 'gelu' in the index, and 'relu'",
    ),
    "eps": (edit("config.json", layer_norm_eps=1e-3), "another architecture: eps is"),
    "heads": (edit("config.json", num_attention_heads=2), "another architecture: num_heads is 4 in the index, and 2"),
    "layers": (edit("config.json", num_hidden_layers=2), "no part of this model uses it"),
    "another model": (lambda folder: load("all-MiniLM-L6-v2"), BY_WEIGHTS),
}


@pytest.fixture(scope="module")
def made(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "index"
    return Index.build(encoder, DOCUMENTS[:10], folder).folder


@pytest.mark.parametrize("fault", MODELS)
def test_fault_of_the_model(made, tiny_bert, tmp_path, fault):
    plant, words = MODELS[fault]
    shutil.copytree(tiny_bert, tmp_path / "model")
    before = contents(made)
    with pytest.raises(ValueError, match=words) as error:
        Index.open(made, plant(tmp_path / "model"))
    assert "\n" not in str(error.value)
    assert contents(made) == before


@needs_kernels
@pytest.mark.parametrize("exchanged", [False, True])
def test_int8_in_place_of_float32(made, tiny_bert, tmp_path, exchanged):
    int8, float32 = load(tiny_bert, precision="int8"), load(tiny_bert)
    if exchanged:
        made = Index.build(int8, DOCUMENTS[:10], tmp_path / "index").folder
        int8, float32 = float32, int8
    words = f"was made in precision {float32.precision.name}, and the model computes in {int8.precision.name}"
    assert {int8.precision.name, float32.precision.name} == {"int8", "float32"}
    with pytest.raises(OtherModelError, match=words):
        Index.open(made, int8)


@needs_kernels
def test_other_8_bit_weights(tiny_bert, tmp_path):
    encoder = load(tiny_bert, precision="int8")
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    encoder.int8 = dataclasses.replace(encoder.int8, file=tmp_path / "one")
    folder = Index.build(encoder, DOCUMENTS[:5], tmp_path / "index").folder
    encoder.int8 = dataclasses.replace(encoder.int8, file=tmp_path / "other")
    with pytest.raises(OtherModelError, match="other 8-bit weights"):
        Index.open(folder, encoder)


SETTINGS = {
    "prompt": ({"prompt": "query "}, {}, "another prompt of documents: '' in the index, 'query ' now"),
    "length": ({"max_length": 12}, {}, "another maximum length: 24 in the index, 12 now"),
    "dimensions": ({"truncate_dim": 16}, {}, "another number of dimensions: 32 in the index, 16 now"),
    "pooling": ({"pooling": "cls"}, {}, "another pooling: 'mean' in the index, 'cls' now"),
    "normalization": ({"normalize": False}, {}, "another normalization: True in the index, False now"),
    "prompt of queries": ({}, {"query_prompt": "query "}, "another prompt of queries: '' in the index, 'query ' now"),
    "adapter of queries": (
        {},
        {"query_adapter": "retrieval.query"},
        "made with no adapter for queries, and the model has the adapter 'retrieval.query'",
    ),
}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("fault", SETTINGS)
def test_fault_of_a_setting_on_append(made, encoder, fault):
    encode, others, words = SETTINGS[fault]
    before = contents(made)
    options = BuildOptions(encode=EncodeOptions(**encode), **others)
    with pytest.raises(OtherModelError, match=words):
        append_to_index(encoder, ListedTexts(["hello"], {}), made, options, lambda *step: None)
    assert contents(made) == before


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """A model with adapters, and an index with one for documents and another for queries."""
    folder = tmp_path_factory.mktemp("adapters")
    first_code("jina_embeddings_v3", folder / "model")
    stacked(folder / "model")
    passages = load(folder / "model", adapter="retrieval.passage")
    return Index.build(passages, DOCUMENTS[:10], folder / "index").folder


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        (None, "made with the adapter 'retrieval.passage', and the model has no adapter"),
        ("text-matching", "made with the adapter 'retrieval.passage', and the model has the adapter 'text-matching'"),
    ],
)
def test_other_adapter(adapters, adapter, words):
    encoder = load(adapters.with_name("model"), adapter=adapter)
    with pytest.raises(OtherModelError, match=words):
        Index.open(adapters, encoder)
    with pytest.raises(OtherModelError, match=words):
        append_to_index(encoder, ListedTexts(["hello"], {}), adapters, BuildOptions(), lambda *step: None)


def test_fine_tuned_adapter_of_queries(adapters):
    encoder = load(adapters.with_name("model"), adapter="retrieval.query")
    Index.open(adapters, encoder)
    with torch.no_grad():
        next(encoder.model.parameters()).mul_(1.001)
    with pytest.raises(OtherModelError, match=BY_WEIGHTS):
        Index.open(adapters, encoder)


def test_other_revision(tiny_bert, tmp_path, monkeypatch):
    """An index loads the revision of the Hub that made it, and names another one."""
    old, new = "a" * 40, "b" * 40
    for revision in (old, new):
        shutil.copytree(tiny_bert, tmp_path / "snapshots" / revision)
    weights(lambda every: every[-3].mul_(1.5))(tmp_path / "snapshots" / new).save_pretrained(
        tmp_path / "snapshots" / new
    )
    main = old
    monkeypatch.setattr(hub, "_from_hub", lambda name, revision: tmp_path / "snapshots" / (revision or main))
    folder = Index.build(load("org/model"), DOCUMENTS[:10], tmp_path / "index").folder
    main = new
    index = Index.open(folder)
    assert (index.encoder.name, index.encoder.revision) == ("org/model", old)
    index.append(["hello"])
    with pytest.raises(OtherModelError, match=f"other weights: .* is revision {new} of the Hub and not {old}"):
        Index.open(folder, load("org/model"))
    Index.open(folder, load("org/model", revision=old))


def test_one_fault_for_each_line_of_the_tables():
    assert len(MODELS) + len(SETTINGS) >= 20
