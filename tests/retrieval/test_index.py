"""An index returns the documents whose vectors are closest, keeps their columns, grows, and refuses damaged files."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.data.indexes import DOCUMENTS, exact_top

from clearhead import Index, SearchResult, TextEncoder
from clearhead.data.corpus import Corpus
from clearhead.io.locks import OutputBusyError, writer_lock
from clearhead.retrieval.manifest import MANIFEST
from clearhead.runtime.vectors import EncodeOptions

ROOT = Path(__file__).parents[2]
VECTOR_FILES = (".int8", ".float32", ".bfloat16")
"""Ends of the names of files with vectors, codes, scales and norms."""


def test_search_returns_the_closest_documents(encoder, index):
    queries = ["the old bridge", "hello storm", "is this a test"]
    vectors = encoder.encode(DOCUMENTS, normalize=True)
    found = index.search(queries, top_k=5)
    for query, results in zip(queries, found, strict=True):
        rows, scores = exact_top(vectors, encoder.encode(query, normalize=True), 5)
        expected = [
            SearchResult(row, score, DOCUMENTS[row], {"id": 100 + row})
            for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
        ]
        assert results == expected
    assert index.search(queries[0], top_k=5) == found[0]
    assert len(index.search("hello", top_k=1000)) == len(index) == 100
    assert Index.open(index.folder).search(queries, top_k=5) == found  # with the model that the index names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "stored", "read"), [("int8", 1928, 392), ("float32", 1536, 1536), ("bfloat16", 768, 768)]
)
def test_bytes_of_a_document(minilm, tmp_path, dtype, stored, read):
    folder = Index.build(minilm, [f"text {number}" for number in range(100)], tmp_path / "index", dtype=dtype).folder
    sizes = {path.name: path.stat().st_size / 100 for path in folder.iterdir() if path.suffix in VECTOR_FILES}
    assert sum(sizes.values()) == stored
    assert sum(size for name, size in sizes.items() if dtype != "int8" or name != "vectors.float32") == read
    row = next(line for line in (ROOT / "docs/guides/search.md").read_text().splitlines() if f"| `{dtype}`" in line)
    assert f"| {stored:,}" in row
    assert dtype != "int8" or f"reads {read}" in row


def test_appended_index_is_the_index_of_all_documents(encoder, index, tmp_path):
    half = Index.build(encoder, DOCUMENTS[:50], tmp_path / "half", columns={"id": range(100, 150)})
    opened = Index.open(half.folder, encoder)
    half.append(DOCUMENTS[50:], columns={"id": range(150, 200)})
    found, expected = (one.search("the bridge", top_k=100) for one in (half, index))
    assert [one.index for one in found] == [one.index for one in expected]
    # other batches may round vectors in another way on some processors
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-6)
    assert len(opened.search("the bridge", top_k=100)) == 50  # opened before
    for name in ("documents.jsonl", "documents.ends"):
        assert (half.folder / name).read_bytes() == (index.folder / name).read_bytes()
    np.testing.assert_allclose(half.stored_vectors, index.stored_vectors, atol=1e-6)
    with pytest.raises(ValueError, match=r"keeps the columns id, and these documents have \(none\)"):
        half.append(["hello"])
    assert len(Index.open(half.folder)) == 100


def test_corpus_of_files_is_indexed_with_its_columns(encoder, tmp_path):
    rows = [{"id": number, "text": text, "place": {"page": number}} for number, text in enumerate(DOCUMENTS[:20])]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = Index.build(encoder, Corpus([tmp_path / "table.jsonl"], keep=["id", "place"]), tmp_path / "index")
    best = index.search(DOCUMENTS[7], top_k=1)[0]
    assert (best.index, best.columns) == (7, {"id": 7, "place": {"page": 7}})
    with pytest.raises(ValueError, match="a corpus has its own columns"):
        Index.build(encoder, Corpus([tmp_path / "table.jsonl"]), tmp_path / "b", columns={"id": [1]})


def test_prompts_and_options_of_the_index_apply_to_queries(encoder, tmp_path):
    options = EncodeOptions(pooling="cls", max_length=12, prompt="passage ", truncate_dim=20, normalize=False)
    index = Index.build(encoder, DOCUMENTS[:30], tmp_path / "index", options=options, query_prompt="query ")
    vectors = encoder.encode(
        DOCUMENTS[:30], pooling="cls", max_length=12, prompt="passage ", truncate_dim=20, normalize=False
    )
    query = encoder.encode("hello", pooling="cls", prompt="query ", truncate_dim=20, normalize=False)
    rows, scores = exact_top(vectors, query, 4)
    found = Index.open(tmp_path / "index", encoder).search("hello", top_k=4)
    assert [(result.index, result.score) for result in found] == list(zip(rows.tolist(), scores.tolist(), strict=True))
    index.append(DOCUMENTS[30:31])
    expected = encoder.encode(DOCUMENTS[30], pooling="cls", max_length=12, prompt="passage ", truncate_dim=20)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "index" / "vectors.float32", "<f4")[-20:], expected)


def test_prompts_of_the_model_are_the_default(encoder, tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "model")
    encoder.save_pretrained(tmp_path / "model")
    settings = {"prompts": {"query": "query ", "passage": "passage "}, "default_prompt_name": None}
    (tmp_path / "model" / "config_sentence_transformers.json").write_text(json.dumps(settings))
    prompted = TextEncoder.from_pretrained(tmp_path / "model", precision="float32", device="cpu")
    made_by = Index.build(prompted, DOCUMENTS[:3], tmp_path / "index").manifest.encoder
    assert (made_by["prompt"], made_by["query_prompt"]) == ("passage ", "query ")


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        (["hello", " "], "document 1: the document is blank; expected words"),
        (["hello", ""], "document 1: the document is empty; expected words"),
        (["hello", 3], "document 1 is a int; expected a string"),
        (["hello", None], "document 1 is a NoneType; expected a string"),
        ("hello", "expected a list of texts, got a single string"),
        (["hello", "\ud800"], "half a surrogate pair"),
    ],
)
def test_documents_that_are_no_texts_are_refused(encoder, index, tmp_path, documents, words):
    before = {path: path.read_bytes() for path in index.folder.iterdir()}

    def given():  # jaxtyping checks the items of a list, not those of an iterator
        return documents if isinstance(documents, str) else iter(documents)

    with pytest.raises(ValueError, match=words):
        Index.build(encoder, given(), tmp_path / "other")
    with pytest.raises(ValueError, match=words):
        Index.build(encoder, given(), index.folder, overwrite=True)
    columns = {"id": [1, 2]} if isinstance(documents, list) else {"id": [1]}
    with pytest.raises(ValueError, match=words):
        index.append(given(), columns=columns)
    assert os.listdir(tmp_path) == ["index"]
    assert {path: path.read_bytes() for path in index.folder.iterdir()} == before


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "the query is empty"),
        (" ", "the query is blank"),
        (["hello", ""], "query 1 is empty"),
        (["hello", 3], "text 1 is a int"),
        ("hello " * 40, "the query has 42 tokens; expected at most 24, the maximum length of the index"),
    ],
)
def test_queries_that_cannot_be_searched_are_refused(index, query, words):
    with pytest.raises(ValueError, match=words):
        index.search(query if isinstance(query, str) else iter(query))


def test_vectors_and_counts_out_of_range_are_refused(index):
    for vectors, words in (
        (np.zeros((1, 5), np.float32), r"expected vectors of shape \(n, 32\), got \(1, 5\)"),
        (np.full((1, 32), np.nan, np.float32), "NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=words):
            index.search_vectors(vectors)
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        index.search("hello", top_k=0)


def test_index_of_no_documents_finds_nothing(encoder, tmp_path):
    index = Index.build(encoder, [], tmp_path / "index")
    assert index.search("hello") == []
    index.append(["hello"])
    assert [result.text for result in index.search("hello")] == ["hello"]


def test_existing_folder_is_kept_unless_it_is_an_index_to_replace(encoder, index, tmp_path):
    with pytest.raises(ValueError, match="exists; add documents with --append, or replace the index with --overwrite"):
        Index.build(encoder, ["hello"], index.folder)
    assert len(Index.build(encoder, ["hello"], index.folder, overwrite=True)) == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="exists and is not an index; give another output"):
            Index.build(encoder, ["hello"], tmp_path / "other", overwrite=overwrite)
    assert os.listdir(tmp_path / "other") == ["mine.txt"]


@pytest.mark.parametrize("name", ["vectors.float32", "codes.int8", "documents.jsonl"])
def test_index_that_is_cut_short_is_refused(index, name):
    size = (index.folder / name).stat().st_size
    os.truncate(index.folder / name, size - 1)
    with pytest.raises(ValueError, match=rf"is cut short: {name} has {size - 1:,} bytes, expected {size:,}"):
        Index.open(index.folder)
    (index.folder / name).unlink()
    with pytest.raises(ValueError, match=rf"is cut short: {name} has 0 bytes"):
        Index.open(index.folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2, "clearhead": "9.1"}, "has format 2 of clearhead 9.1, and this version reads format 1"),
        ({"rows": 99}, "is damaged"),
        ({"rows": -1}, "is damaged"),
        ({"rows": "x"}, "is damaged"),
        ({"width": 8}, "is damaged"),
        ({"dtype": "float8"}, "is damaged"),
        ({"files": {}}, "is damaged"),
        ({"files": 5}, "is damaged"),
        ({"encoder": {}}, "is damaged"),
        ({"encoder": None}, "is damaged"),
        ({"max_norm": 0}, "is damaged"),
        ({"max_norm": 10**400}, "is damaged"),
        ({"max_norm": None}, "is damaged"),
        ({"kind": "a model"}, "is not an index"),
    ],
)
def test_description_of_another_version_or_with_damage_is_refused(index, change, words):
    data = json.loads((index.folder / MANIFEST).read_text())
    (index.folder / MANIFEST).write_text(json.dumps(data | change))
    with pytest.raises(ValueError, match=words):
        Index.open(index.folder)


def test_description_with_another_query_prompt_is_refused(index):
    data = json.loads((index.folder / MANIFEST).read_text())
    assert not data["encoder"]["query_prompt"]
    data["encoder"]["query_prompt"] = "query: "
    (index.folder / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(ValueError, match="is damaged"):
        Index.open(index.folder)


@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16"])
def test_damage_that_a_search_meets_is_an_error(encoder, tmp_path, dtype):
    index = Index.build(encoder, ["hello", "world", "the house"], tmp_path / dtype, dtype=dtype)
    (vectors,) = index.folder.glob("vectors.*")
    damaged = {vectors: b"\xff", index.folder / "documents.jsonl": b"\xff"}
    if dtype == "int8":
        damaged[index.folder / "bounds.float32"] = b"\xff"
    huge = (good := vectors.read_bytes())[:-1] + bytes([good[-1] ^ 0x40])  # times 2^128, or as much smaller
    for path, value in [(vectors, huge), *damaged.items()]:  # 0xffffffff is NaN
        good = path.read_bytes()
        path.write_bytes((value * len(good))[: len(good)])
        with pytest.raises(ValueError, match=f"{path.name} is damaged. Build the index again"):
            Index.open(index.folder, encoder).search("hello", top_k=2)
        path.write_bytes(good)
    assert len(Index.open(index.folder, encoder).search("hello", top_k=2)) == 2


@pytest.mark.parametrize("contents", ["", '{"format": 1, "ki', "[1]"])
def test_description_that_is_cut_short_is_refused(index, contents):
    (index.folder / MANIFEST).write_text(contents)
    with pytest.raises(ValueError, match=r"index\.json .*\. Copy or build the index again"):
        Index.open(index.folder)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 0}, "max_length"),
        ({"max_length": 99}, "max_length is 99, but this model takes at most 24 tokens"),
        ({"truncate_dim": 99}, "truncate_dim is 99"),
        ({"prompt": "hello " * 40}, "no token of a text would be left"),
    ],
)
def test_wrong_options_leave_nothing_behind(encoder, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        Index.build(encoder, ["hello"], tmp_path / "index", options=EncodeOptions(**options))
    with pytest.raises(ValueError, match="no token of a text would be left"):
        Index.build(encoder, ["hello"], tmp_path / "index", query_prompt="hello " * 40)
    assert os.listdir(tmp_path) == []
    (tmp_path / ".index.part").mkdir()  # of a process that was killed before its first documents
    assert len(Index.build(encoder, ["hello"], tmp_path / "index")) == 1


def test_folder_that_cannot_be_replaced_alone_is_refused(encoder, index, monkeypatch):
    monkeypatch.chdir(index.folder)
    for folder, words in ((".", "is no name for an index"), ("..", "is no name"), ("a/b", "is inside the index")):
        with pytest.raises(ValueError, match=words):
            Index.build(encoder, ["hello"], folder, overwrite=True)
    assert not (index.folder / "a").exists()


def test_append_to_an_index_with_changed_bytes_is_refused(index):
    vectors = index.folder / "vectors.float32"
    data = bytearray(vectors.read_bytes())
    data[5] ^= 1
    vectors.write_bytes(data)
    with pytest.raises(ValueError, match=r"vectors.float32 is damaged: its hash is not that of the index"):
        index.append(["hello"], columns={"id": [1]})


def test_second_writer_is_refused(encoder, index, tmp_path):
    for folder in (index.folder, tmp_path / "new"):
        with writer_lock(folder):
            with pytest.raises(OutputBusyError, match=f"{folder} is being written by process {os.getpid()}"):
                Index.build(encoder, ["hello"], folder)
            if folder.exists():
                with pytest.raises(OutputBusyError, match="is being written"):
                    index.append(["hello"], columns={"id": [1]})
                assert len(Index.open(folder)) == 100  # readers see the documents that are complete
            else:
                with pytest.raises(OutputBusyError, match="is being written"):
                    Index.open(folder)
    with pytest.raises(ValueError, match="no such index"):
        Index.open(tmp_path / "new")
    with pytest.raises(ValueError, match=r"is not an index: it has no index\.json"):
        Index.open(tmp_path)
