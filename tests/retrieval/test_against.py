"""`clearhead verify --against`: another system has the vectors of an index, or the difference is named."""

import errno
import json
import os
import tempfile

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from support import served
from support.command import clearhead, refused
from support.data.indexes import DOCUMENTS

from clearhead import Index
from clearhead.retrieval import canaries
from clearhead.retrieval.against.comparison import compare, record
from clearhead.retrieval.manifest import HISTORY
from clearhead.runtime.vectors import EncodeOptions


def test_the_same_vectors(folder, endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    for url in (endpoint.url, f"{endpoint.url}/v1/", f"{endpoint.url}/v1/embeddings"):
        comparison = compare(folder, url)
        assert comparison.is_same
        assert "has the same vectors for 32 texts: largest relative distance" in comparison.summary
    assert [body["input"] for body in endpoint.bodies[:32]] == list(canaries.TEXTS)
    assert {body["model"] for body in endpoint.bodies} == {"model"}


FAULTS = {
    "not normalized": (
        lambda vector, text: 3.0 * vector,
        "same directions and other lengths: the normalization differs",
    ),
    "other width": (lambda vector, text: vector[:8], "they have 8 dimensions, and the index 32"),
    "bfloat16": (lambda vector, text: vector * (1.0 + 0.01 * (np.arange(32) % 2)), "another precision"),
    "truncated": (lambda vector, text: -vector if len(text) > 500 else vector, "only long texts differ"),
    "NaN": (lambda vector, text: vector * np.nan, "some hold NaN"),
    "another model": (lambda vector, text: np.roll(vector, 1), "the mean cosine of those texts is"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_differences_are_named(folder, endpoint, fault):
    change, message = FAULTS[fault]
    right = endpoint.vector_of
    endpoint.vector_of = lambda text: change(right(text), text)
    comparison = compare(folder, endpoint.url)
    assert not comparison.is_same
    assert message in comparison.summary


def recorded(folder, target):
    """Return a comparison that is in the index's history."""
    comparison = compare(folder, target)
    record(folder, comparison)
    return comparison


def test_since_when(folder, endpoint):
    right = endpoint.vector_of
    assert recorded(folder, endpoint.url).since == ""
    first_same = json.loads((folder / HISTORY).read_text())["time"]
    endpoint.vector_of = lambda text: -right(text)
    first = recorded(folder, endpoint.url)
    assert first.since == f"the same until {first_same}, different since {first.time}"
    assert recorded(folder, endpoint.url).since == first.since
    endpoint.vector_of = right
    assert recorded(folder, endpoint.url).is_same
    assert len((folder / HISTORY).read_text().splitlines()) == 4
    Index.open(folder)  # the history does not damage the index


def test_history_with_half_a_line_continues_on_the_next(folder, endpoint):
    right = endpoint.vector_of
    recorded(folder, endpoint.url)
    history = folder / HISTORY
    history.write_text(history.read_text() + '{"target": "ht')
    endpoint.vector_of = lambda text: -right(text)
    first = recorded(folder, endpoint.url)
    assert first.since.startswith("the same until ")
    assert recorded(folder, endpoint.url).since == first.since
    assert len(history.read_text().splitlines()) == 4


def test_damaged_lines_of_the_history_are_skipped(folder, endpoint):
    right = endpoint.vector_of
    recorded(folder, endpoint.url)
    history = folder / HISTORY
    line = json.loads(history.read_text())
    damaged = [
        b"[" * 10**5,
        b"\xff",
        *(json.dumps(line | {"time": value}).encode() for value in ({"a": [1]}, 5, "a\nb")),
    ]
    history.write_bytes(history.read_bytes() + b"".join(one + b"\n" for one in damaged))
    endpoint.vector_of = lambda text: -right(text)
    assert recorded(folder, endpoint.url).since.startswith(f"the same until {line['time']}, different since ")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_index_that_may_not_be_written_has_no_history(folder, endpoint, monkeypatch, number):
    def refuse(*args, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert recorded(folder, endpoint.url).is_same
    assert not (folder / HISTORY).exists()


@pytest.mark.slow
def test_history_that_cannot_be_written_is_an_error_after_the_result(folder, endpoint):
    (folder / HISTORY).mkdir()
    status, output, log = clearhead("verify", "--against", endpoint.url, "--index", folder)
    assert (status, log.count("\n")) == (1, 1)
    assert "has the same vectors" in output
    assert str(folder / HISTORY) in log


def test_refused_texts_are_counted(folder, endpoint):
    right = endpoint.vector_of
    endpoint.vector_of = lambda text: None if len(text) > 500 else right(text)
    comparison = compare(folder, endpoint.url)
    assert comparison.is_same
    refused = sum(len(text) > 500 for text in canaries.TEXTS)
    assert f"for {32 - refused} texts" in comparison.summary
    assert f"{refused} texts were refused" in comparison.summary
    assert "the text is too long" in comparison.summary
    endpoint.vector_of = lambda text: None
    assert not compare(folder, endpoint.url).is_same


@pytest.mark.slow
@pytest.mark.parity
def test_sentence_transformers(folder, encoder, tmp_path):
    encoder.save_pretrained(tmp_path / "model")
    assert compare(folder, str(tmp_path / "model")).is_same
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    model.max_seq_length = 12
    model.save(str(tmp_path / "truncated"))
    comparison = compare(folder, str(tmp_path / "truncated"))
    assert not comparison.is_same


@pytest.mark.parity
@pytest.mark.slow
def test_onnx(encoder, tmp_path):
    encoder.save_pretrained(tmp_path / "model")
    status, _, err = clearhead("export", str(tmp_path / "model"), str(tmp_path / "onnx"), "--to", "onnx")
    assert status == 0, err
    (tmp_path / "raw").mkdir()
    folder = Index.build(
        encoder, DOCUMENTS[:5], tmp_path / "raw" / "index", options=EncodeOptions(normalize=encoder.settings.normalize)
    ).folder
    comparison = compare(folder, str(tmp_path / "onnx" / "model.onnx"))
    assert comparison.is_same, comparison.summary
    (tmp_path / "onnx" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="there is no tokenizer.json next to"):
        compare(folder, str(tmp_path / "onnx" / "model.onnx"))


@pytest.mark.slow
def test_own_server_from_the_command_line(encoder, tmp_path):
    encoder.save_pretrained(tmp_path / "model")
    options = EncodeOptions(normalize=encoder.settings.normalize)
    folder = Index.build(encoder, DOCUMENTS[:5], tmp_path / "index", options=options).folder
    with served.server({"one": str(tmp_path / "model")}, precision="float32") as address:
        url = getattr(address, "address", address)
        status, out, err = clearhead("verify", "--against", url, "--index", str(folder))
        assert (status, err) == (0, ""), out
        assert "the same vectors" in out
        status, out, _ = clearhead("verify", "--against", url, "--index", str(folder), "--json")
        assert (status, json.loads(out)["is_same"]) == (0, True)


@pytest.mark.slow
def test_arguments_that_do_not_fit(folder, endpoint, tmp_path):
    assert "and no model" in refused("verify", "all-MiniLM-L6-v2", "--against", "x", "--index", str(folder))
    assert "needs --against SYSTEM and --index FOLDER" in refused("verify", "--index", str(folder))
    assert "verify needs a model, or --against SYSTEM --index FOLDER" in refused("verify")
    compared = ("verify", "--against", "x", "--index", str(folder))
    for option in (["--write"], ["--output", tmp_path / "a.json"], ["--reference", "transformers"]):
        assert "omit them with --against" in refused(*compared, *option)
    assert "--name requires --against" in refused("verify", "all-MiniLM-L6-v2", "--name", "a")
    assert "is none of the systems to compare" in refused("verify", "--against", "x", "--index", str(folder))
    endpoint.RequestHandlerClass.names = ("a", "b")
    try:
        with pytest.raises(ValueError, match="has the models a, b; choose one with --name"):
            compare(folder, endpoint.url)
        assert compare(folder, endpoint.url, "b").is_same
    finally:
        endpoint.RequestHandlerClass.names = ("model",)
    with pytest.raises(OSError, match="cannot be reached"):
        compare(folder, "http://127.0.0.1:9", "m")
    with pytest.raises(ValueError, match="not an index|is no index|manifest"):
        compare(tmp_path, endpoint.url)
