"""`clearhead verify --against`: hostile endpoints, graphs and folders are refused in one line that names them."""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import socket
import socketserver
import threading

import numpy as np
import onnx
import pytest

from clearhead.retrieval.against.comparison import compare, record
from clearhead.retrieval.manifest import HISTORY


def answering(content, status="200 OK", length=None, repeated=b""):
    """Serve the same bytes for every request, without end if some are repeated; return the server and its address."""

    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            self.server.received.append(self.connection.recv(100_000))
            size = len(content) if length is None else length
            with contextlib.suppress(OSError):  # the client went away
                self.wfile.write(f"HTTP/1.1 {status}\r\ncontent-length: {size}\r\n\r\n".encode() + content)
                while repeated and not self.server.stopped.wait(0.05):
                    self.wfile.write(repeated)
                self.connection.shutdown(socket.SHUT_WR)
                while self.connection.recv(100_000):  # otherwise the client may get an error in place of the answer
                    pass

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer)
    server.received, server.stopped = [], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


DEEP = b"[" * 200_000
NESTED = json.dumps({"data": [{"id": "m", "embedding": [[0.5] * 32]}]}).encode()
STRINGS = json.dumps({"data": [{"id": "m", "embedding": ["0.5"] * 32}]}).encode()
HUGE = b'{"data": [{"id": "m", "embedding": [1' + b"0" * 500 + b"]}]}"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"content": b"{", "length": 9}, "did not answer with JSON"),
        ({"content": DEEP}, "did not answer with JSON"),
        ({"content": HUGE}, "returned no embedding"),
        ({"content": NESTED}, "returned no embedding"),
        ({"content": STRINGS}, "returned no embedding"),
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
    ("status", "content", "repeated"),
    [
        ("200 OK\r\ntransfer-encoding: chunked", b"0\r\n", b"x: y\r\n"),
        ("100 Continue", b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        ("200 OK", b"", b" "),
        ("400 Bad", b"", b" "),
        ("422 No\r\ntransfer-encoding: chunked", b"0\r\n", b"x: y\r\n"),
    ],
)
def test_answer_without_end_is_given_up(folder, monkeypatch, status, content, repeated):
    monkeypatch.setattr("clearhead.retrieval.against.endpoint._TIMEOUT", 0.5)
    server, url = answering(content, status, length=10**9, repeated=repeated)
    with server:
        try:
            with pytest.raises(OSError, match=r"cannot be reached: no complete answer in 0\.5 s") as error:
                compare(folder, url, "m")
        finally:
            server.stopped.set()
            server.shutdown()
    assert url in str(error.value)


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_key_is_not_sent_to_another_server(folder, monkeypatch, scheme):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    other, its_url = answering(b"{}")
    location = f"{scheme}{its_url.removeprefix('http')}/v1/models"
    server, url = answering(b"", f"302 Found\r\nlocation: {location}")
    with server, other:
        try:
            with pytest.raises(OSError, match="answered 302: it has moved to") as error:
                compare(folder, url)
        finally:
            server.shutdown()
            other.shutdown()
    assert f"{location}; give that URL" in str(error.value)
    assert (len(server.received), other.received) == (1, [])


@pytest.mark.filterwarnings("error")
def test_values_beyond_float32_are_a_difference_without_a_warning(folder, endpoint):
    for value, distance in ((1e39, None), (3e38, pytest.approx(3e38 * 32**0.5, rel=1e-3))):
        endpoint.vector_of = lambda text, value=value: np.full(32, value)
        comparison = compare(folder, endpoint.url)
        assert not comparison.is_same
        distances = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))["distances"]
        assert distances == [distance] * 32


def test_targets_that_are_empty_or_in_capitals(folder, endpoint):
    with pytest.raises(ValueError, match="an empty name is none of the systems"):
        compare(folder, "")
    assert compare(folder, endpoint.url.replace("http", "HTTP")).is_same


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes")
def test_history_replaces_no_pipe(folder, endpoint):
    comparison = compare(folder, endpoint.url)
    os.mkfifo(folder / HISTORY)
    with pytest.raises(OSError, match="not a file") as error:
        record(folder, comparison)
    assert error.value.filename == str(folder / HISTORY)
    assert (folder / HISTORY).is_fifo()


def test_code_in_a_folder_of_sentence_transformers_is_not_run(folder, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "modules.json").write_text('[{"idx": 0, "name": "0", "path": "", "type": "code.Code"}]')
    (other / "code.py").write_text(f"open({str(tmp_path / 'has run')!r}, 'w')\n")
    with pytest.raises(ValueError, match="other: sentence-transformers cannot use it"):
        compare(folder, str(other))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.1.0")
    with pytest.raises(ValueError, match=r"sentence-transformers 6 or later: 5\.1\.0, which is installed, runs code"):
        compare(folder, str(other))
    assert not (tmp_path / "has run").exists()


def write_graph(path, values, output):
    """Write a graph whose only output is a constant."""
    given = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["B", "L"])
    kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    nodes = [
        onnx.helper.make_node("Shape", ["input_ids"], ["shape"]),
        onnx.helper.make_node("Constant", [], [output], value=onnx.numpy_helper.from_array(values)),
    ]
    graph = onnx.helper.make_graph(nodes, "graph", [given], [onnx.helper.make_tensor_value_info(output, kind, None)])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), path)


@pytest.mark.parametrize(
    ("output", "shape", "words"),
    [
        ("sentence_embedding", (), "the output sentence_embedding has the shape (); expected (1, any size)"),
        ("sentence_embedding", (0, 32), "has the shape (0, 32)"),
        ("last_hidden_state", (1, 77, 32), "has the shape (1, 77, 32); expected (1, "),
        ("last_hidden_state", (0, 5, 32), "has the shape (0, 5, 32)"),
        ("last_hidden_state", (2,), "has no output with a vector"),
    ],
)
def test_graph_with_another_output_is_named(folder, tiny_bert, tmp_path, output, shape, words):
    shutil.copyfile(tiny_bert / "tokenizer.json", tmp_path / "tokenizer.json")
    write_graph(tmp_path / "model.onnx", np.ones(shape, np.float32), output)
    summary = compare(folder, str(tmp_path / "model.onnx")).summary
    assert words in summary
    assert str(tmp_path / "model.onnx") in summary


@pytest.mark.skipif(os.name != "posix", reason="names are Unicode")
def test_graph_whose_name_is_not_utf8(folder, tmp_path):
    path = tmp_path / os.fsdecode(b"a\xff.onnx")
    write_graph(path, np.ones((1, 32), np.float32), "sentence_embedding")
    with pytest.raises(ValueError, match="the path is not UTF-8, which ONNX Runtime needs"):
        compare(folder, str(path))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:x/",
        "http://a b/",
        "http://[::1",
        "http://a/\n",
        "http://é/é",
        f"http://{'a' * 70}/",
        "http:// ",
    ],
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
