"""An index refuses every model but the one that made it, and names the difference; kernels may differ by a rounding."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.data.indexes import DOCUMENTS

from clearhead import Index, TextEncoder
from clearhead.retrieval import canaries
from clearhead.retrieval.identity import OtherModelError


@pytest.fixture(scope="module")
def made(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "index"
    return Index.build(encoder, DOCUMENTS[:10], folder).folder


def load(folder, **options):
    return TextEncoder.from_pretrained(folder, **{"precision": "float32", "device": "cpu"} | options)


def change_weights(encoder, amount):
    with torch.no_grad():
        list(encoder.model.parameters())[-3].mul_(1.0 + amount)


def change_settings(encoder, **changes):
    encoder.settings = dataclasses.replace(encoder.settings, **changes)


def replace_token(folder, old, new):
    text = (folder / "tokenizer.json").read_text()
    assert f'"{old}"' in text
    (folder / "tokenizer.json").write_text(text.replace(f'"{old}"', f'"{new}"'))


FAULTS = {
    "fine-tuned a little": (lambda encoder: change_weights(encoder, 1e-3), "other weights"),
    "fine-tuned": (lambda encoder: change_weights(encoder, 0.5), "other weights"),
    "one weight": (lambda encoder: next(encoder.model.parameters()).data[0, 0].add_(1e-3), "other weights"),
    "pooling cls": (lambda encoder: change_settings(encoder, pooling="cls"), "other default pooling: 'mean'"),
    "pooling max": (lambda encoder: change_settings(encoder, pooling="max"), "other default pooling: 'mean'"),
    "normalized": (lambda encoder: change_settings(encoder, normalize=True), "other default normalization"),
    "truncated": (lambda encoder: change_settings(encoder, max_length=12), "other default maximum length: 24"),
    "prompts": (lambda encoder: change_settings(encoder, prompts={"query": "query "}), "other prompts"),
    "default prompt": (
        lambda encoder: change_settings(encoder, prompts={"a": "a "}, default_prompt="a"),
        "other prompts",
    ),
    "prompt not pooled": (lambda encoder: change_settings(encoder, pool_prompt=False), "other pooling of the prompt"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_changed_model_is_refused_by_name(made, tiny_bert, fault):
    change, words = FAULTS[fault]
    encoder = load(tiny_bert)
    change(encoder)
    with pytest.raises(OtherModelError, match=f"was made by a model with {words}"):
        Index.open(made, encoder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: replace_token(folder, "hello", "hallo"), "other tokenizer"),
        (lambda folder: replace_token(folder, "[UNK]", "[MISS]"), "other tokenizer|unk"),
        (
            lambda folder: edit(folder, "config.json", hidden_act="relu"),
            "another architecture: activation is 'gelu' in the index, and 'relu'",
        ),
        (lambda folder: edit(folder, "config.json", layer_norm_eps=1e-3), "another architecture: eps is"),
        (lambda folder: edit(folder, "config.json", num_attention_heads=2), "another architecture: num_heads is"),
        (lambda folder: edit(folder, "config.json", num_hidden_layers=2), "no part of this model uses it"),
    ],
)
def test_changed_folder_is_refused_by_name(made, tiny_bert, tmp_path, change, words):
    shutil.copytree(tiny_bert, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(ValueError, match=words):
        Index.open(made, load(tmp_path / "model"))


def edit(folder, name, **changes):
    data = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(data | changes))


def test_other_model_or_precision_is_refused(made, minilm, tiny_bert):
    with pytest.raises(OtherModelError, match="other weights"):
        Index.open(made, minilm)
    int8 = load(tiny_bert)
    int8.precision = dataclasses.replace(int8.precision, name="int8")
    with pytest.raises(OtherModelError, match="was made in precision float32, and the model computes in int8"):
        Index.open(made, int8)


def test_same_model_opens_from_another_place_and_in_bfloat16(made, tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "copy")
    Index.open(made, load(tmp_path / "copy"))
    Index.open(made, load(tiny_bert, precision="bfloat16"))


def test_dropout_is_no_other_architecture(made, tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "copy")
    edit(tmp_path / "copy", "config.json", hidden_dropout_prob=0.4, attention_probs_dropout_prob=0.3)
    Index.open(made, load(tmp_path / "copy"))


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_kernels_of_other_processors_are_no_false_alarm(made, tiny_bert, capability):
    code = "import sys; from clearhead import Index, TextEncoder; "
    code += "Index.open(sys.argv[1], TextEncoder.from_pretrained(sys.argv[2], precision='float32', device='cpu'))"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", code, str(made), str(tiny_bert)], env=environment, check=True)


def test_canaries_find_what_hashes_do_not(made, tiny_bert, monkeypatch):
    real = TextEncoder.encode_tokens
    encoder = load(tiny_bert)
    canaries._computed.clear()
    for factor, is_found in ((1.0 + 1e-6, False), (1.001, True)):
        monkeypatch.setattr(TextEncoder, "encode_tokens", lambda *rest, factor=factor: real(*rest) * factor)
        if is_found:
            with pytest.raises(OtherModelError, match=r"has other vectors than .* now: .* expected at most 0\.0001"):
                Index.open(made, encoder)
        else:
            Index.open(made, encoder)
        canaries._computed.clear()


def test_canaries_are_computed_once(made, encoder, monkeypatch):
    Index.open(made, encoder)
    monkeypatch.setattr(TextEncoder, "encode_tokens", None)
    Index.open(made, encoder)


def test_damaged_canaries_are_refused(made, encoder):
    path = made / canaries.CANARIES_FILE
    whole = path.read_text()
    data = json.loads(whole)
    assert len(data["texts"]) == 32
    try:
        for damage in ("", "{}", json.dumps(data | {"vectors": [[0.0]]}), json.dumps(data | {"texts": ["a"] * 32})):
            path.write_text(damage)
            with pytest.raises(ValueError, match="canaries.json is damaged"):
                Index.open(made, encoder)
        path.write_text(json.dumps(data | {"vectors": (np.array(data["vectors"]) * 1.001).tolist()}))
        with pytest.raises(OtherModelError, match="differs by 0.001, expected at most 0.0001"):
            Index.open(made, encoder)
    finally:
        path.write_text(whole)
