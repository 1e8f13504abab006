"""Reranked, hybrid and approximate search, exports that databases load, and resumed runs."""

import json
import os

import duckdb
import lancedb
import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.indexes import DOCUMENTS
from support.models import families

from clearhead import Index, Reranker, TextEncoder
from clearhead.corpus.encode import ResumeError
from clearhead.data.corpus import Corpus
from clearhead.retrieval import build
from clearhead.retrieval.build import BuildOptions, append_to_index, build_index
from clearhead.retrieval.lexical import LexicalIndex, fuse


def make_reranker(folder, labels):
    folder.mkdir()
    families.make("bert", folder, "ForSequenceClassification", num_labels=labels)
    return Reranker.from_pretrained(folder, precision="float32", device="cpu")


def test_reranker_orders_the_best_candidates(index, tmp_path):
    reranker = make_reranker(tmp_path / "one", 1)
    candidates = index.search("the bridge", top_k=20)
    expected = reranker.rank("the bridge", [result.text for result in candidates], top_k=3)
    found = index.search("the bridge", top_k=3, reranker=reranker, candidates=20)
    assert [(one.text, one.score) for one in found] == [(one.text, one.score) for one in expected]
    assert [one.columns["id"] for one in found] == [100 + one.index for one in found]
    assert len(index.search("the bridge", top_k=5, reranker=reranker, candidates=2)) == 5
    with pytest.raises(ValueError, match="has 3 scores for a pair"):
        index.search("the bridge", reranker=make_reranker(tmp_path / "three", 3))


def test_hybrid_search_finds_documents_with_the_words(encoder, tmp_path):
    documents = ["zebra xylophone", *DOCUMENTS[:50]]
    index = Index.build(encoder, documents, tmp_path / "index")
    found = index.search("xylophone", top_k=51, hybrid=True)
    ranks = [result.index for result in index.search("xylophone", top_k=51)]
    assert found[0].index == 0
    assert found[0].score == pytest.approx(1 / 61 + 1 / (61 + ranks.index(0)))
    words = LexicalIndex(documents)
    assert words.search("xylophone", 10).tolist() == [0]
    assert words.search("unseen", 10).tolist() == words.search("!", 10).tolist() == []
    assert LexicalIndex(["!", "?"]).search("a", 5).tolist() == []
    index.append(["xylophone xylophone"])
    assert {result.index for result in index.search("xylophone", top_k=2, hybrid=True)} == {0, 51}


def test_equal_documents_keep_their_order_in_hybrid_search(encoder, tmp_path):
    documents = ["hello", "world", "the old bridge", "hello"]
    index = Index.build(encoder, documents, tmp_path / "index")
    for _ in range(2):
        index.append(documents)
    for query in documents[:3]:
        found = index.search(query, top_k=12, hybrid=True)
        for text in documents[:3]:
            rows = [result.index for result in found if result.text == text]
            assert rows == sorted(rows)
            assert len(rows) == 3 * documents.count(text)
        assert [result.index for result in index.search(query, top_k=5, hybrid=True)] == [
            result.index for result in found[:5]
        ]


def test_equal_scores_of_words_keep_their_order_also_at_the_cut():
    chance = np.random.default_rng(0)
    documents = [str(text) for text in chance.choice(["hello", "hello world", "world", "bridge"], 500)]
    words = LexicalIndex(documents)
    scores = words._index.get_scores(["hello", "world"])
    expected = [row for row in np.argsort(-scores, kind="stable").tolist() if scores[row] > 0]
    assert len({*scores.tolist()}) == 4
    for count in (1, 7, 100, 125, 130, 250, len(expected), 500, 1000):
        assert words.search("hello world", count).tolist() == expected[:count]
        assert (
            words.search("bridge", count).tolist()
            == [row for row, text in enumerate(documents) if text == "bridge"][:count]
        )


@given(data=st.data())
def test_fusion_keeps_the_order_that_rows_have_in_each_ranking(data):
    """Rows 10 to 13 are equal: both rankings have them in order, and may be cut off anywhere."""
    rankings = []
    for _ in range(2):
        others = data.draw(st.permutations([*range(10), *[-1] * 4]))
        equal = iter(range(10, 14))
        ranking = [next(equal) if row < 0 else row for row in others]
        rankings.append(np.array(ranking[: data.draw(st.integers(0, 14))], np.int64))
    rows = [row for row in fuse(rankings, 14)[0] if row >= 10]
    assert rows == sorted(rows)


def test_fused_score_is_the_sum_of_reciprocal_ranks():
    rows, scores = fuse([np.array([3, 1, 2]), np.array([1, 9])], 3)
    assert rows == [1, 3, 9]
    assert scores == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62])


def test_approximate_search_extends_its_graph_and_has_exact_scores(index):
    exact = index.search(["the bridge", "hello"], top_k=10)
    assert index.search(["the bridge", "hello"], top_k=10, approximate=True) == exact
    index.append(["hello hello bridge"], columns={"id": [1]})
    assert index.search("hello hello bridge", top_k=1, approximate=True)[0].index == 100
    assert index.search("hello", top_k=101, approximate=True) == index.search("hello", top_k=101)


def test_approximate_search_finds_as_many_documents_as_there_are(encoder, tmp_path):
    index = Index.build(encoder, ["the same"] * 300 + DOCUMENTS, tmp_path / "index")
    assert len(index.search("hello world", top_k=390, approximate=True)) == 390
    (index.folder / "graph.usearch").write_bytes(b"")  # a damaged graph is made again
    assert len(Index.open(index.folder, encoder).search("hello", top_k=5, approximate=True)) == 5


def test_graph_of_a_changed_index_is_not_used(encoder, index):
    old = Index.open(index.folder, encoder)
    Index.build(encoder, DOCUMENTS[::-1], index.folder, overwrite=True)
    with pytest.raises(ValueError, match="has changed since it was opened; open it again"):
        old.search("hello", approximate=True)


def test_unknown_options_and_numbers_are_refused(index):
    with pytest.raises(TypeError, match="unexpected keyword argument 'rerank'"):
        index.search("hello", rerank=True)
    with pytest.raises(ValueError, match="candidates must be at least 1; got 0"):
        index.search("hello", candidates=0)


def test_damaged_positions_are_refused_by_name(index, encoder):
    path = index.folder / "documents.ends"
    data = bytearray(path.read_bytes())
    data[7] = 0x7F
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"documents\.ends is damaged"):
        Index.open(index.folder, encoder).search("hello", top_k=100)


def test_missing_packages_are_named(index, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for option, package in (("hybrid", "bm25s"), ("approximate", "usearch")):
        with pytest.raises(ValueError, match=rf'needs {package}: pip install "clearhead\[search\]"'):
            index.search("hello", **{option: True})


def test_export_of_a_column_with_the_name_of_the_vectors(tiny_bert, tmp_path):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    index = Index.build(encoder, ["hello world"], tmp_path / "index", columns={"embedding": [3]})
    assert Index.open(tmp_path / "index").search("hello")[0].columns == {"embedding": 3}
    with pytest.raises(ValueError, match=r"a\.jsonl: the index has a column 'embedding'"):
        index.export(tmp_path / "a.jsonl")
    index.export(tmp_path / "a.npy")


def test_exported_parquet_file_gives_the_same_results_in_databases(index, tmp_path):
    path = tmp_path / "documents.parquet"
    index.export(path)
    query = index.encode_tokens(index.tokenize_queries(["the bridge"]))[0]
    expected = [result.columns["id"] for result in index.search("the bridge", top_k=5)]
    near = "ORDER BY list_inner_product(embedding::FLOAT[], ?::FLOAT[]) DESC LIMIT 5"
    found = duckdb.execute(f"SELECT id, text FROM '{path}' {near}", [query.tolist()]).fetchall()
    assert [row[0] for row in found] == expected
    rows = pyarrow.parquet.read_table(path)
    assert rows.column("text").to_pylist() == DOCUMENTS
    table = lancedb.connect(tmp_path / "database").create_table("documents", rows)
    assert [row["id"] for row in table.search(query).metric("dot").limit(5).to_list()] == expected
    index.export(tmp_path / "vectors.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), index.stored_vectors)
    with pytest.raises(ValueError, match="the file extension selects the format"):
        index.export(tmp_path / "a.db")


def options(**changes):
    return BuildOptions(**{"window_texts": 12} | changes)


def stop(run, *arguments, windows=2):
    calls = 0

    def interrupt(done, tokens, texts):
        nonlocal calls
        calls += bool(texts and tokens)
        if calls > windows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(*arguments, interrupt)


@pytest.fixture
def corpus(tmp_path):
    rows = [{"id": number, "text": text} for number, text in enumerate(DOCUMENTS)]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lambda: Corpus([tmp_path / "table.jsonl"], keep=["id"])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("appends", [False, True])
def test_resumed_run_writes_the_same_bytes(encoder, corpus, tmp_path, appends):
    folders = tmp_path / "whole", tmp_path / "index"
    run = append_to_index if appends else build_index
    for folder in folders if appends else ():
        Index.build(encoder, ["hello"], folder, columns={"id": [7]})
    run(encoder, corpus(), folders[0], options(), lambda *step: None)
    before = contents(folders[1]) if appends else None
    stop(run, encoder, corpus(), folders[1], options())
    if appends:
        assert len(Index.open(folders[1])) == 1
        assert contents(folders[1])[build.MANIFEST] == before[build.MANIFEST]
    else:
        assert not folders[1].exists()
        with pytest.raises(ValueError, match="is not complete: the run that built it was interrupted"):
            Index.open(folders[1])
    with pytest.raises(
        ResumeError, match="an interrupted run has encoded 24 documents for .*; continue it with --resu"
    ):
        run(encoder, corpus(), folders[1], options(), lambda *step: None)
    with pytest.raises(ResumeError, match="cannot be resumed: window was 12 and is now 13"):
        run(encoder, corpus(), folders[1], options(resume=True, window_texts=13), lambda *step: None)
    steps = []
    stats = run(encoder, corpus(), folders[1], options(resume=True), lambda *step: steps.append(step))
    assert stats.texts == 100
    assert sum(texts for _, tokens, texts in steps if tokens) == 76
    assert contents(folders[0]) == contents(folders[1])
    assert sorted(os.listdir(tmp_path)) == ["index", "table.jsonl", "whole"]


def test_appended_documents_appear_all_at_once(encoder, corpus, tmp_path):
    index = Index.build(encoder, ["hello"], tmp_path / "index", columns={"id": [7]})
    found = set()

    def search(*step):
        found.add((len(index.search("hello", top_k=200)), len(Index.open(index.folder, encoder))))

    append_to_index(encoder, corpus(), index.folder, options(), search)
    assert found == {(1, 1)}
    assert len(Index.open(index.folder, encoder)) == 101


def test_append_with_overwrite_needs_an_interrupted_append(index):
    before = contents(index.folder)
    with pytest.raises(ValueError, match=r"has no interrupted append that --overwrite could discard; omit --overwrite"):
        index.append(["hello"], columns={"id": [7]}, overwrite=True)
    assert contents(index.folder) == before
    index.append(["hello"], columns={"id": [7]}, resume=True)
    assert len(index) == 101


@pytest.mark.slow
def test_interrupted_run_is_discarded_with_overwrite(encoder, corpus, tmp_path):
    stop(build_index, encoder, corpus(), tmp_path / "index", options())
    build_index(encoder, corpus(), tmp_path / "index", options(overwrite=True), lambda *step: None)
    stop(append_to_index, encoder, corpus(), tmp_path / "index", options())
    append_to_index(encoder, corpus(), tmp_path / "index", options(overwrite=True), lambda *step: None)
    assert len(Index.open(tmp_path / "index", encoder)) == 200
    with pytest.raises(ValueError, match="not both"):
        build_index(encoder, corpus(), tmp_path / "b", options(overwrite=True, resume=True), lambda *step: None)
