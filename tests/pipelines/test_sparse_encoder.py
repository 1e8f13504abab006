"""SPLADE vectors equal sentence-transformers', in both directions."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder as TheirEncoder
from support.models.families import FAMILIES, make

from clearhead.pipelines.encoding.sparse_encoder import SparseEncoder, splade

TEXTS = ["hello world", "the old bridge was closed after the storm", "x", "", "this is the test"] * 2


def dense(vectors, size):
    rows = np.zeros((len(vectors), size), dtype=np.float32)
    for row, vector in zip(rows, vectors, strict=True):
        row[vector.ids] = vector.weights
    return rows


def assert_within(ours, theirs, bound=1e-5):
    assert (np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)).max() < bound


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("camembert", "xlm-roberta", "roberta")])
def test_vectors_equal_those_of_sentence_transformers_both_ways(family, tmp_path):
    make(family, tmp_path, "ForMaskedLM")
    theirs = TheirEncoder(str(tmp_path), device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    expected = theirs.encode(TEXTS).to_dense().numpy()
    ours = SparseEncoder.from_pretrained(tmp_path / "theirs", precision="float32", device="cpu")
    vectors = ours.encode(TEXTS)
    assert_within(dense(vectors, expected.shape[1]), expected)
    assert 0 < len(vectors[0].ids) < expected.shape[1]
    products = ours.similarity(vectors[:2], vectors)
    np.testing.assert_allclose(products, expected[:2] @ expected.T, rtol=1e-4, atol=1e-4)
    alone = ours.encode(TEXTS[1])
    assert_within(dense([alone], expected.shape[1])[0], expected[1])
    best = ours.decode(alone, top_k=3)
    assert list(best.values()) == sorted(alone.weights.tolist(), reverse=True)[:3]
    ours.save_pretrained(tmp_path / "ours")
    again = TheirEncoder(str(tmp_path / "ours"), device="cpu").encode(TEXTS).to_dense().numpy()
    assert_within(again, expected)


def test_weights_are_the_maximum_over_the_tokens():
    logits = torch.randn(5, 30)
    expected = torch.stack([torch.log1p(row.clamp(min=0)) for row in logits]).amax(dim=0)
    torch.testing.assert_close(splade(logits), expected)


def test_bfloat16_is_close(tmp_path):
    make("bert", tmp_path, "ForMaskedLM")
    exact, lower = (
        dense(SparseEncoder.from_pretrained(tmp_path, precision=precision, device="cpu").encode(TEXTS), 75)
        for precision in ("float32", "bfloat16")
    )
    cosine = (exact * lower).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(lower, axis=1)
    assert cosine.min() > 0.99
    assert not np.array_equal(exact, lower)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pooling_strategy": "sum"}, "pooling_strategy='sum', which is not supported; only 'max' is"),
        ({"activation_function": "log1p_relu"}, "activation_function='log1p_relu', which is not supported"),
    ],
)
def test_other_poolings_are_refused_by_name(changes, words, tmp_path):
    torch.manual_seed(0)
    make("bert", tmp_path, "ForMaskedLM")
    SparseEncoder.from_pretrained(tmp_path, device="cpu").save_pretrained(tmp_path)
    path = tmp_path / "1_SpladePooling" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=words):
        SparseEncoder.from_pretrained(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["type"] = "sentence_transformers.sparse_encoder.modules.CSRSparsity"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="CSRSparsity', which is not supported"):
        SparseEncoder.from_pretrained(tmp_path)
