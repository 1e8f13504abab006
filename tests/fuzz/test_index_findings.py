"""What the fuzzers and a reader found in indexes: values of other types, wherever an index is used."""

import json
import os

import pytest
from support.command import clearhead
from support.command import refused as command_refuses

from clearhead import Index, TextEncoder
from clearhead.io.json import json_hash
from clearhead.retrieval.manifest import MANIFEST, read_manifest
from fuzz.test_findings import refused


@pytest.fixture
def index(tiny_bert, tmp_path):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    return Index.build(encoder, ["the old bridge", "hello world"], tmp_path / "index", columns={"id": [1, 2]})


def rewrite(index, **changes):
    """Change the description of an index, with its hash."""
    path = index.folder / MANIFEST
    data = json.loads(path.read_text())
    for key, value in changes.items():
        *parts, last = key.split("__")
        inner = data
        for part in parts:
            inner = inner[part]
        inner[last] = value
    data.pop("sha256")
    path.write_text(json.dumps(data | {"sha256": json_hash(data)}))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_norm": "."},
        {"max_norm": float("inf")},
        {"columns": [3]},
        *({"columns": columns} for columns in ([[1]], ["", "id"], ["id", "id"], ["text"])),
        {"rows": True},
        {"encoder__query_prompt": [[]]},
        {"encoder__query_prompt": 10**30},
        {"encoder__query_encoder": "[CLS]"},
        {"encoder__query_encoder": {"model": "x"}},
        {"encoder__precision": "../x"},
        {"encoder__adapter": 2},
        {"encoder__model": "x" * 20_000},
        {"encoder__model": "/x" + "x" * 20_000},
        {"encoder__max_length": 0},
        {"encoder__pooling": "[UNK]"},
        {"encoder__config__distance_max": "x"},
        {"encoder__normalize": [1]},
        {"encoder__revision": [1]},
        {"encoder__truncate_dim": 31},
        {"clearhead": "a\nb", "format": -1},
        {"format": True},
    ],
)
def test_descriptions_of_an_index_with_other_types(index, changes):
    rewrite(index, **changes)
    refused(lambda: Index.open(index.folder).search("hello"), index.folder)


def test_missing_key_in_the_description_of_an_index(index):
    config = json.loads((index.folder / MANIFEST).read_text())["encoder"]["config"]
    name = next(name for name, value in config.items() if value is None)
    del config[name]
    rewrite(index, encoder__config=config)
    refused(lambda: Index.open(index.folder).search("hello"), index.folder, f"{name} is 'missing' in the index")
    files = json.loads((index.folder / MANIFEST).read_text())["files"]
    del files["documents.jsonl"]
    rewrite(index, files=files)
    refused(lambda: read_manifest(index.folder), MANIFEST)


@pytest.mark.parametrize("document", [b"[" * 40, b'{"text": 5, "id": 1}', b'{"text": "a", "ID": 1}', b"3"])
def test_documents_of_another_form(index, document):
    path = index.folder / "documents.jsonl"
    size = path.read_bytes().index(b"\n")
    path.write_bytes(document[:size].ljust(size) + path.read_bytes()[size:])
    refused(lambda: Index.open(index.folder).search(["hello"], 2), "documents.jsonl is damaged")


@pytest.mark.slow
def test_damaged_graph_is_made_again(index):
    expected = index.search("hello", approximate=True)
    path = index.folder / "graph.usearch"
    intact = path.read_bytes()
    for start in range(0, len(intact), max(1, len(intact) // 20)):
        path.write_bytes(intact[:start] + b"[" * 64 + intact[start + 64 :])
        os.utime(path, (0, start))
        assert Index.open(index.folder, index.encoder).search("hello", approximate=True) == expected
        assert len(path.read_bytes()) == len(intact)
    (index.folder / "graph.json").unlink()
    assert Index.open(index.folder, index.encoder).search("hello", approximate=True) == expected


def test_graph_is_not_hashed_for_each_search(index, monkeypatch):
    index.search("hello", approximate=True)
    monkeypatch.setattr("clearhead.retrieval.approximate.has_content", None)
    assert index.search("hello", approximate=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in ("model", "precision", "normalize", "max_length", "pooling", "prompt")),
        *((name, [1]) for name in ("model", "precision", "normalize", "max_length", "query_prompt", "adapter")),
        ("prompt", float("nan")),
        ("query_encoder", {"x": 1}),
    ],
)
def test_wrong_descriptions_are_refused_by_append_and_against(index, tiny_bert, tmp_path, name, value):
    rewrite(index, **{f"encoder__{name}": value})
    (tmp_path / "new.txt").write_text("another bridge\n")
    append = ("index", tmp_path / "new.txt", "--append", "-o", index.folder)
    named = f"{index.folder / MANIFEST} is damaged: encoder.{name}"
    assert named in command_refuses(*append)
    assert named in command_refuses(*append, "-m", tiny_bert)
    assert named in command_refuses("verify", "--against", tiny_bert, "--index", index.folder)


def test_unknown_precision_of_an_index_is_refused_by_append_with_the_index(index, tmp_path):
    rewrite(index, encoder__precision="float7")
    (tmp_path / "new.txt").write_text("another bridge\n")
    append = ("index", tmp_path / "new.txt", "--append", "-o", index.folder)
    assert f"the model of {index.folder} cannot be loaded: " in command_refuses(*append)


def test_description_of_an_index_is_not_needed_in_full(index, tiny_bert, tmp_path):
    data = json.loads((index.folder / MANIFEST).read_text())
    for name in ("revision", "adapter", "int8_weights", "query_encoder"):
        del data["encoder"][name]
    del data["sha256"]
    (index.folder / MANIFEST).write_text(json.dumps(data | {"sha256": json_hash(data)}))
    (tmp_path / "new.jsonl").write_text('{"text": "another bridge", "id": 3}\n')
    columns = ("--column", "text", "--keep", "id")
    assert clearhead("index", tmp_path / "new.jsonl", *columns, "--append", "-o", index.folder)[0] == 0
    assert len(Index.open(index.folder)) == 3
