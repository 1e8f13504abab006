"""Fixtures for tests of indexes: a tiny encoder, an index of its vectors, and an endpoint that has the same ones."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from support.data.indexes import DOCUMENTS

from clearhead import Index, TextEncoder
from clearhead.retrieval import canaries


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch):
    """Do not wait for the disk: these tests do not cut the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")


@pytest.fixture
def index(encoder, tmp_path):
    return Index.build(encoder, DOCUMENTS, tmp_path / "index", columns={"id": range(100, 200)})


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
