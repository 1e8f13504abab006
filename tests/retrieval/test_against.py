"""`clearhead verify --against`: another system has the vectors of an index, or the difference is named."""

import errno
import json
import os
import re
import shutil
import socket
import socketserver
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from support import served
from support.command import clearhead, refused
from support.data.indexes import DOCUMENTS

from clearhead import Index
from clearhead.retrieval import against, canaries
from clearhead.retrieval.against import compare, record
from clearhead.runtime.vectors import EncodeOptions


@pytest.fixture
def folder(encoder, tmp_path):
    return Index.build(encoder, DOCUMENTS[:5], tmp_path / "index").folder


@pytest.fixture
def stored(folder):
    return np.array(json.loads((folder / canaries.CANARIES_FILE).read_text())["vectors"], np.float32)


class Endpoint(BaseHTTPRequestHandler):
    """An endpoint with OpenAI's API whose vectors a test chooses."""

    names = ("model",)

    def do_GET(self):
        self._answer(200, {"data": [{"id": name} for name in self.names]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        vector = self.server.vector_of(body["input"])
        if vector is None:
            self._answer(400, {"error": {"message": "the text is too long"}})
        else:
            self._answer(200, {"data": [{"embedding": np.asarray(vector).tolist()}]})

    def _answer(self, status, data):
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def endpoint(stored):
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    server.bodies = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.vector_of = lambda text: stored[canaries.TEXTS.index(text)]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


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
    first_same = json.loads((folder / against.HISTORY).read_text())["time"]
    endpoint.vector_of = lambda text: -right(text)
    first = recorded(folder, endpoint.url)
    assert first.since == f"the same until {first_same}, different since {first.time}"
    assert recorded(folder, endpoint.url).since == first.since
    endpoint.vector_of = right
    assert recorded(folder, endpoint.url).is_same
    assert len((folder / against.HISTORY).read_text().splitlines()) == 4
    Index.open(folder)  # the history does not damage the index


def test_history_with_half_a_line_continues_on_the_next(folder, endpoint):
    right = endpoint.vector_of
    recorded(folder, endpoint.url)
    history = folder / against.HISTORY
    history.write_text(history.read_text() + '{"target": "ht')
    endpoint.vector_of = lambda text: -right(text)
    first = recorded(folder, endpoint.url)
    assert first.since.startswith("the same until ")
    assert recorded(folder, endpoint.url).since == first.since
    assert len(history.read_text().splitlines()) == 4


def test_damaged_lines_of_the_history_are_skipped(folder, endpoint):
    right = endpoint.vector_of
    recorded(folder, endpoint.url)
    history = folder / against.HISTORY
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
    assert not (folder / against.HISTORY).exists()


@pytest.mark.slow
def test_history_that_cannot_be_written_is_an_error_after_the_result(folder, endpoint):
    (folder / against.HISTORY).mkdir()
    status, output, log = clearhead("verify", "--against", endpoint.url, "--index", folder)
    assert (status, log.count("\n")) == (1, 1)
    assert "has the same vectors" in output
    assert str(folder / against.HISTORY) in log


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


def answering(content, status="200 OK", length=None):
    """Serve the same bytes for every request; return the server and its address."""

    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            self.connection.recv(100_000)
            size = len(content) if length is None else length
            self.wfile.write(f"HTTP/1.1 {status}\r\ncontent-length: {size}\r\n\r\n".encode() + content)
            self.connection.shutdown(socket.SHUT_WR)
            while self.connection.recv(100_000):  # otherwise the client may get an error in place of the answer
                pass

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


DEEP = b"[" * 200_000
HUGE = b'{"data": [{"id": "m", "embedding": [1' + b"0" * 500 + b"]}]}"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"content": b"{", "length": 9}, "did not answer with JSON"),
        ({"content": DEEP}, "did not answer with JSON"),
        ({"content": HUGE}, "returned no embedding"),
        ({"content": b"\xff\xfe"}, "did not answer with JSON"),
        ({"content": b"one\ntwo", "status": "422 No"}, "answered 422: one two"),
        ({"content": b"", "status": "x"}, "did not answer as HTTP requires: HTTP/1.1 x"),
        ({"content": b"", "length": "0\r\ntransfer-encoding: chunked\r\n\r\n" + "f" * 30}, "as HTTP requires"),
    ],
)
def test_hostile_answers_are_refused_in_one_line(folder, answer, words):
    server, url = answering(**answer)
    with server:
        try:
            summary = compare(folder, url, "m").summary
        except (ValueError, OSError) as error:
            summary = str(error)
        finally:
            server.shutdown()
    assert words in summary
    assert url in summary
    assert "\n" not in summary


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:x/", "http://a b/", "http://[::1", "http://a/\n", "http://é/é", f"http://{'a' * 70}/"]
)
def test_what_is_no_url_is_refused(folder, url):
    with pytest.raises((ValueError, OSError), match=re.escape(url)):
        compare(folder, url)


def test_key_with_a_line_break_is_refused_and_not_printed(folder, endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret\n")
    with pytest.raises(ValueError, match="OPENAI_API_KEY has a line break") as error:
        compare(folder, endpoint.url)
    assert "secret" not in str(error.value)


def test_damaged_folder_of_sentence_transformers_is_refused_by_name(folder, tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"other: sentence-transformers cannot use it: .*header") as error:
        compare(folder, str(tmp_path / "other"))
    assert "\n" not in str(error.value)
