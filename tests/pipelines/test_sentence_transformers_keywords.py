"""The keywords of sentence-transformers give the results of sentence-transformers, and mteb runs the encoder."""

import copy
import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.models.tiny import make_bert

from clearhead import TextEncoder, quantize_vectors

TEXTS = ["the old bridge", "was closed after the storm", "hello world", "this is a test", "hello, hello!"]
PROMPTS = {"query": "query ", "document": "passage ", "other": "test "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    base, folder = tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("prompts")
    transformer = Transformer(str(make_bert(base)))
    pooling = Pooling(transformer.get_embedding_dimension())
    model = SentenceTransformer(modules=[transformer, pooling], prompts=PROMPTS, default_prompt_name="other")
    model.save(str(folder))
    return folder


@pytest.fixture(scope="module")
def ours(folder):
    return TextEncoder.from_pretrained(folder, precision="float32", device="cpu")


@pytest.fixture(scope="module")
def theirs(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


CALLS = [
    {},
    {"prompt_name": "query"},
    {"prompt": "after "},
    {"prompt": "after ", "prompt_name": "query"},
    {"batch_size": 2, "show_progress_bar": False, "normalize_embeddings": True},
    {"truncate_dim": 7, "normalize_embeddings": True},
    {"convert_to_tensor": True},
    {"convert_to_tensor": True, "precision": "uint8"},
    {"convert_to_numpy": False},
    *({"precision": precision} for precision in (None, "float32", "int8", "uint8", "binary", "ubinary")),
]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_results_have_the_types_and_values_of_sentence_transformers(ours, theirs, method, call):
    result, expected = (getattr(model, method)(TEXTS, **call) for model in (ours, theirs))
    assert type(result) is type(expected)
    result, expected = (np.stack([np.asarray(row) for row in rows]) for rows in (result, expected))
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if result.dtype == np.float32:
        np.testing.assert_allclose(result, expected, atol=2e-5)
    elif "binary" in call["precision"]:
        np.testing.assert_array_equal(result, expected)
    else:  # a value at the border of two levels
        assert np.abs(result.astype(int) - expected.astype(int)).max() <= 1


def test_queries_and_documents_have_prompts_of_their_own(ours):
    query, document, default = ours.encode_query(TEXTS), ours.encode_document(TEXTS), ours.encode(TEXTS)
    np.testing.assert_array_equal(query, ours.encode(TEXTS, prompt="query "))
    np.testing.assert_array_equal(document, ours.encode(TEXTS, prompt_name="document"))
    np.testing.assert_array_equal(ours.encode_query(TEXTS, prompt=""), ours.encode(TEXTS, prompt=""))
    renamed = copy.copy(ours)
    renamed.settings = replace(ours.settings, prompts={"corpus": "closed ", "passage": PROMPTS["document"]})
    np.testing.assert_array_equal(document, renamed.encode_document(TEXTS))
    assert not np.allclose(query, document)
    assert not np.allclose(query, default)


def test_prompt_is_used_in_place_of_prompt_name(ours, caplog):
    with caplog.at_level(logging.WARNING):
        ours.encode(TEXTS, prompt="after ", prompt_name="query")
    assert "prompt_name='query' is not used, because prompt is given" in caplog.text
    with pytest.raises(ValueError, match="got .quary.; did you mean .query.\\?"):
        ours.encode(TEXTS, prompt_name="quary")


def test_similarities_equal_those_of_sentence_transformers(ours, theirs):
    first, second = theirs.encode(TEXTS, convert_to_tensor=True), theirs.encode_query(TEXTS, convert_to_tensor=True)
    for method in ("similarity", "similarity_pairwise"):
        expected = getattr(theirs, method)(first, second)
        as_tensors, as_arrays = getattr(ours, method)(first, second), getattr(ours, method)(first.numpy(), second)
        assert (type(as_tensors), type(as_arrays)) == (torch.Tensor, np.ndarray)
        torch.testing.assert_close(as_tensors, expected, atol=1e-6, rtol=0)
        np.testing.assert_array_equal(as_tensors, as_arrays)


matrices = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=19),
    elements=st.floats(-4, 4, width=32),
)


@given(matrices, st.sampled_from(["float32", "int8", "uint8", "binary", "ubinary"]), st.booleans())
def test_quantized_vectors_equal_those_of_sentence_transformers(vectors, precision, given_ranges):
    from sentence_transformers.util import quantize_embeddings

    ranges = np.stack([np.full(vectors.shape[1], end, np.float32) for end in (-1, 2)]) if given_ranges else None
    expected = quantize_embeddings(vectors, precision, ranges=ranges)
    result = quantize_vectors(vectors, precision, ranges)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("precision", "size"), [("float32", 1536), ("int8", 384), ("uint8", 384), ("binary", 48), ("ubinary", 48)]
)
def test_bytes_of_quantized_vectors(precision, size):
    vectors = np.random.default_rng(0).standard_normal((3, 384), np.float32)
    assert quantize_vectors(vectors, precision).nbytes == 3 * size


def test_ranges_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"expected ranges \(2, 3\), got an array of shape \(2, 4\)"):
        quantize_vectors(np.ones((5, 3), np.float32), "int8", np.ones((2, 4), np.float32))


def local_task():
    """Return a retrieval task of mteb whose data are here."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    fields = dict.fromkeys(
        ["date", "domains", "task_subtypes", "license", "annotations_creators", "dialect", "sample_creation"]
    )
    documents = [*TEXTS, "a storm", "the test"]

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="LocalRetrieval", description="A test.", reference="https://example.org", type="Retrieval",
            dataset={"path": "none", "revision": "1"}, category="t2t", modalities=["text"], eval_splits=["test"],
            eval_langs=["eng-Latn"], main_score="ndcg_at_10", bibtex_citation="", **fields,
        )  # fmt: skip

        def load_data(self, **_):
            queries = {"id": [f"q{index}" for index in range(5)], "text": [text[:9] for text in TEXTS]}
            corpus = {"id": [f"d{index}" for index in range(7)], "text": documents, "title": [""] * 7}
            relevant = {f"q{index}": {f"d{index}": 1} for index in range(5)}
            split = {"corpus": Dataset.from_dict(corpus), "queries": Dataset.from_dict(queries)}
            split |= {"relevant_docs": relevant, "top_ranked": None}
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return LocalRetrieval()


@pytest.mark.slow
def test_mteb_gives_the_scores_of_sentence_transformers(ours, theirs, tmp_path, monkeypatch):
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path))
    mteb = pytest.importorskip("mteb")
    scores = []
    bits = {"precision": "binary"}
    for model, options in ((ours, {"batch_size": 2}), (theirs, {}), (ours, bits)):
        result = mteb.evaluate(model, local_task(), cache=None, show_progress_bar=False, encode_kwargs=options)
        (row,) = result.task_results[0].scores["test"]
        scores.append({key: row[key] for key in ("ndcg_at_10", "map_at_5", "recall_at_3")})
    assert scores[0] == pytest.approx(scores[1])
    assert scores[2] != scores[0]
    assert 0 < scores[0]["ndcg_at_10"] < 1


@pytest.mark.slow
def test_mteb_distinguishes_models_by_a_hash(ours, folder, tmp_path):
    pytest.importorskip("mteb")
    assert ours.mteb_model_meta.name == f"clearhead/{folder.name}"
    ours.save_pretrained(tmp_path)
    assert TextEncoder.from_pretrained(tmp_path, precision="float32").mteb_model_meta.revision == (
        ours.mteb_model_meta.revision
    )
    half = TextEncoder.from_pretrained(tmp_path, precision="bfloat16", device="cpu")
    other = TextEncoder.from_pretrained(tmp_path, precision="float32", device="cpu")
    with torch.no_grad():
        next(other.model.encoder.parameters()).add_(1e-3)
    other.save_pretrained(tmp_path / "other")
    other = TextEncoder.from_pretrained(tmp_path / "other", precision="float32", device="cpu")
    revisions = {model.mteb_model_meta.revision for model in (ours, half, other)}
    assert len(revisions) == 3
    settings = tmp_path / "config_sentence_transformers.json"
    changed = json.loads(settings.read_text(encoding="utf-8")) | {"default_prompt_name": "query"}
    settings.write_text(json.dumps(changed), encoding="utf-8")
    assert TextEncoder.from_pretrained(tmp_path, precision="float32").mteb_model_meta.revision != (
        ours.mteb_model_meta.revision
    )
