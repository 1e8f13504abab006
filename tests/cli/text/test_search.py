"""`clearhead index` writes an index that `clearhead search` searches; wrong inputs are one line."""

import json
import os
import shutil

import pytest
from support.command import clearhead, refused, started
from support.data.indexes import DOCUMENTS
from support.models import families

from clearhead import Index, Reranker


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert):
    folder = tmp_path_factory.mktemp("search")
    rows = [{"id": number, "text": text} for number, text in enumerate(DOCUMENTS[:40])]
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.txt").write_text("the old bridge\nhello storm\n")
    options = ["-m", tiny_bert, "--precision", "float32"]
    status, _, err = started("index", folder / "table.jsonl", "--keep", "id", "-o", folder / "index", *options)
    assert (status, err.partition(",")[0]) == (0, "40 documents"), err
    return folder


def test_dtype_of_an_index_cannot_change(tiny_bert, tmp_path):
    folder = tmp_path / "index"
    (tmp_path / "a.txt").write_text("hello\n")
    status, _, err = clearhead("index", tmp_path / "a.txt", "-m", tiny_bert, "--output", folder)
    assert status == 0, err
    arguments = ("index", tmp_path / "a.txt", "--append", "--output", folder)
    assert "has the dtype int8; omit --dtype" in refused(*arguments, "--dtype", "float32")
    status, _, err = clearhead(*arguments)
    assert status == 0, err


@pytest.mark.slow
def test_found_documents_are_those_of_python(folder):
    found = Index.open(folder / "index").search(["the old bridge", "hello storm"], top_k=3)
    status, out, err = started("search", folder / "index", folder / "queries.txt", "--top", 3, "--json")
    assert (status, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["query"] for line in lines] == ["the old bridge", "hello storm"]
    for line, results in zip(lines, found, strict=True):
        assert line["results"] == [
            {"index": one.index, "score": one.score, "text": one.text, "id": one.index} for one in results
        ]
    status, out, err = clearhead("search", folder / "index", "the old bridge", "-k", 3)
    assert (status, err) == (0, "")
    assert out == "".join(f"{one.score:.4f}  {one.index}  {one.text}\n" for one in found[0])
    status, out, err = clearhead("search", folder / "index", folder / "queries.txt", "-k", 1)
    assert [line for line in out.splitlines() if line and line[1] != "."] == ["the old bridge", "hello storm"]


def test_appended_documents_are_found(folder, tiny_bert):
    status, _, err = clearhead("index", "query passage", "-m", tiny_bert, "-o", folder / "grown", "--json")
    assert (status, err) == (0, "")
    status, out, err = clearhead("index", "hello world", "-o", folder / "grown", "--append", "--json")
    assert (status, json.loads(out)["documents"], json.loads(out)["in_index"]) == (0, 1, 2), err
    assert "omit --append to replace the index" in refused(
        "index", "b", "-o", folder / "grown", "--append", "--overwrite"
    )
    assert [one.text for one in Index.open(folder / "grown").search("hello world")] == ["hello world", "query passage"]


@pytest.mark.slow
def test_reranker_and_words_order_the_documents(folder, tmp_path):
    for labels in (1, 3):
        (tmp_path / str(labels)).mkdir()
        families.make("bert", tmp_path / str(labels), "ForSequenceClassification", num_labels=labels)
    index = Index.open(folder / "index")
    reranker = Reranker.from_pretrained(tmp_path / "1")
    search = ("search", folder / "index", "the old bridge", "-k", 3, "--json")
    for arguments, options in (
        (["--rerank", tmp_path / "1", "--candidates", 20], {"reranker": reranker, "candidates": 20}),
        (["--hybrid"], {"hybrid": True}),
    ):
        status, out, err = clearhead(*search, *arguments)
        assert (status, err) == (0, "")
        found = [one["index"] for one in json.loads(out)["results"]]
        assert found == [one.index for one in index.search("the old bridge", top_k=3, **options)]
    assert "has 3 scores for a pair" in refused(*search, "--rerank", tmp_path / "3")
    assert "--candidates requires --rerank" in refused(*search, "--candidates", 5)
    assert "needs the head of" in refused(*search, "--rerank", index.manifest.encoder["model"])


def test_moved_model_is_named(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "model")
    status, _, err = clearhead("index", "hello", "-m", tmp_path / "model", "-o", tmp_path / "index")
    assert status == 0, err
    (tmp_path / "model").rename(tmp_path / "moved")
    assert "is not at" in refused("search", tmp_path / "index", "hello")
    status, _, err = clearhead("search", tmp_path / "index", "hello", "-m", tmp_path / "moved")
    assert (status, err) == (0, "")


@pytest.mark.slow
def test_wrong_inputs_are_one_line(folder, tiny_bert):
    (folder / "blank.txt").write_text("hello\n\nworld\n")
    (folder / "numbers.jsonl").write_text('{"text": "hello"}\n{"text": 3}\n')
    new, index = folder / "new", folder / "index"
    before = sorted(os.listdir(folder))
    for arguments, words in (
        (("index", "hello"), "index needs --output FOLDER"),
        (("index", folder / "blank.txt", "-m", tiny_bert, "-o", new), "blank.txt, line 2: the document is empty"),
        (("index", folder / "numbers.jsonl", "-m", tiny_bert, "-o", new), "numbers.jsonl, line 2"),
        (("index", folder / "none.txt", "-m", tiny_bert, "-o", new), "no such file"),
        (("index", "hello", "-m", tiny_bert, "-o", index), "exists; add documents with --append"),
        (("index", "hello", "-o", new, "--append"), "no such index"),
        (("index", "hello", "-o", index, "--append", "--pooling", "cls"), "has another pooling: 'mean' in the index"),
        (("index", folder / "table.jsonl", "--keep", "score", "-o", new), "the output already has a column 'score'"),
        (("search", new, "hello"), "no such index"),
        (("search", folder, "hello"), "is not an index"),
        (("search", index, "hello " * 40), "the query has 42 tokens; expected at most 24"),
        (("search", index, " "), "the query is blank"),
        (("search", index, folder / "blank.txt"), "blank.txt, line 2: the query is empty"),
        (("search", index, "hello", "-m", "all-MiniLM-L6-v2"), "was made by a model with other weights"),
    ):
        status, _, err = clearhead(*arguments)
        assert status == 1, arguments
        assert err.startswith("clearhead: error: "), err
        assert err.count("\n") == 1, err
        assert words in err
    assert sorted(os.listdir(folder)) == before
    assert "no such index" in refused("search", new, "hello", run=started)
