"""An index with one adapter for documents and another for queries."""

import json

import httpx
import numpy as np
import pytest
from support import served
from support.command import clearhead, refused
from support.data.indexes import DOCUMENTS, exact_top
from support.models.first_code import first_code, stacked

from clearhead import Index, TextEncoder

TEXTS = DOCUMENTS[:20]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters") / "model"
    first_code("jina_embeddings_v3", folder)
    stacked(folder)
    return folder


@pytest.fixture(scope="module")
def encoders(model):
    names = ("retrieval.passage", "retrieval.query", "text-matching")
    return {
        name: TextEncoder.from_pretrained(model, precision="float32", device="cpu", adapter=name)
        for name in (None, *names)
    }


def assert_found(results, documents, queries, query):
    vectors = documents.encode(TEXTS, normalize=True)
    rows, scores = exact_top(vectors, queries.encode(query, normalize=True), 4)
    assert [one.index for one in results] == rows.tolist()
    assert [one.score for one in results] == pytest.approx(scores.tolist(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "given", "expected"),
    [
        ("retrieval.passage", None, "retrieval.query"),
        ("retrieval.passage", "retrieval_passage", "retrieval.passage"),
        ("retrieval.passage", "", None),
        ("text-matching", None, "text-matching"),
        ("text-matching", "retrieval-query", "retrieval.query"),
        (None, None, None),
        (None, "retrieval.query", "retrieval.query"),
    ],
)
def test_documents_and_queries_have_their_adapters(encoders, tmp_path, adapter, given, expected):
    index = Index.build(encoders[adapter], TEXTS, tmp_path / "index", query_adapter=given)
    assert_found(index.search("hello world", top_k=4), encoders[adapter], encoders[expected], "hello world")
    made_by = index.manifest.encoder
    assert made_by["adapter"] == adapter
    assert bool(made_by["query_encoder"]) == (adapter != expected)
    prompts = {"retrieval.query": "query ", "retrieval.passage": "passage "}
    assert (made_by["prompt"], made_by["query_prompt"]) == (prompts.get(adapter, ""), prompts.get(expected, ""))
    reopened = Index.open(index.folder)
    assert reopened.search("hello world", top_k=4) == index.search("hello world", top_k=4)
    assert Index.open(index.folder, encoders[expected]).search("hello", top_k=1) == index.search("hello", top_k=1)
    reopened.append(["hello"])
    vector = np.fromfile(index.folder / "vectors.float32", "<f4")[-index.width :]
    np.testing.assert_allclose(vector, encoders[adapter].encode("hello", normalize=True), atol=1e-6)


@pytest.mark.slow
def test_commands(model, encoders, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    folder = tmp_path / "index"
    build = ("index", tmp_path / "texts.txt", "-m", model, "-o", folder, "--precision", "float32")
    assert "has no adapter 'other'. Use one of: retrieval.query" in refused(*build, "--adapter", "other")
    assert "has no adapter 'other'. Use one of: retrieval.query" in refused(*build, "--query-adapter", "other")
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]
    status, _, err = clearhead(*build, "--adapter", "retrieval.passage")
    assert status == 0, err
    for more in ((), ("-m", model)):
        status, out, err = clearhead("search", folder, "hello world", "-k", 4, "--json", *more)
        assert (status, err) == (0, "")
        found = [one["index"] for one in json.loads(out)["results"]]
        assert found == [one.index for one in Index.open(folder).search("hello world", top_k=4)]
    append = ("index", "hello", "-o", folder, "--append")
    assert "has the adapter 'text-matching'" in refused(*append, "--adapter", "text-matching")
    assert "has no adapter. Use the adapter of the index" in refused(*append, "--adapter", "")
    assert "with the adapter 'retrieval.query' for queries" in refused(*append, "--query-adapter", "text-matching")
    for more in ((), ("--adapter", "retrieval_passage", "--query-adapter", "retrieval-query")):
        status, _, err = clearhead(*append, *more)
        assert status == 0, err
    assert len(Index.open(folder)) == 22


@pytest.mark.slow
def test_server(model, encoders, tmp_path):
    folder = Index.build(encoders["retrieval.passage"], TEXTS, tmp_path / "index").folder
    models = {"docs": str(folder), "q": str(model), "d": str(model)}
    adapters = ["q=retrieval.query", "d=retrieval.passage"]
    with served.server(models, precision="float32", adapters=adapters) as server:
        response = httpx.post(
            f"{server.address}/search", json={"query": "hello world", "model": "docs", "top_k": 4}
        ).json()
        found = [one["index"] for one in response["results"]]
        assert found == [one.index for one in Index.open(folder).search("hello world", top_k=4)]
        for name, adapter in (("q", "retrieval.query"), ("d", "retrieval.passage")):
            response = httpx.post(f"{server.address}/v1/embeddings", json={"input": "hello", "model": name}).json()
            vector = response["data"][0]["embedding"]
            np.testing.assert_allclose(vector, encoders[adapter].encode("hello"), atol=1e-5)


@pytest.mark.slow
def test_wrong_adapters_of_a_server(model, encoders, tiny_bert, tmp_path):
    folder = Index.build(encoders[None], TEXTS[:2], tmp_path / "index").folder
    for path, option, words in (
        (model, "other", "--adapter expects NAME=ADAPTER; got 'other'"),
        (model, "b=retrieval.query", "--adapter names the model 'b', which is not loaded; loaded: a"),
        (model, "a=other", "has no adapter 'other'. Use one of: retrieval.query"),
        (tiny_bert, "a=other", "a bert model has no adapters"),
        (folder, "a=retrieval.query", "--adapter is not for an index, which has its own adapters"),
        ("tatoeba-en-de", "a=retrieval.query", "only encoders without a head have adapters"),
    ):
        status, _, err = clearhead("serve", "--model", f"a={path}", "--adapter", option, "--port", 0)
        assert status == 1
        assert words in err.splitlines()[-1]
