"""Hostile answers of an endpoint, whose vectors `verify --against` compares with those of an index."""

import json
import socket
import socketserver
import threading
import time
from pathlib import Path
from random import Random

from fuzz import mutations
from fuzz.outcomes import Case, Target

INDEX = "index"
CONTENT = json.dumps({"data": [{"id": "model", "embedding": [0.5] * 32}]}).encode()
"""A valid answer."""
TIMEOUT = 1.0
"""Seconds after which a silent endpoint is given up. The command waits for a minute."""
ENDLESS = (
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 100),
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n", b" "),
    (b"HTTP/1.1 400 Bad\r\ncontent-length: 999\r\n\r\n", b" "),
)
"""The start of answers without end, and what comes again and again."""
STATUSES = (200, 200, 200, 200, 201, 204, 206, 301, 307, 400, 401, 404, 413, 422, 429, 500, 503, 99, 1000)


def prepare(folder: Path) -> None:
    """Write a model and an index."""
    from support.data.corpora import sentences
    from support.models.tiny import make_bert

    from clearhead import Index, TextEncoder

    encoder = TextEncoder.from_pretrained(make_bert(folder / "bert"), precision="float32", device="cpu")
    Index.build(encoder, [text for text in sentences(9) if text.strip()], folder / INDEX)


def make(originals: Path, random: Random, workspace: Path) -> Case:
    """Return a case: an endpoint that answers every request with the same bytes, in some cases without end."""
    name = random.choice([None, "model"])
    if random.random() < 0.02:
        sent, repeated = random.choice(ENDLESS)
        use = lambda: compare_with(originals / INDEX, sent, name, repeated)  # noqa: E731
        return Case(f"answer without end: {sent!r}, {repeated[:9]!r}", use, ["http://127.0.0.1:"])
    content = CONTENT
    changes = []
    if random.random() < 0.5:
        data, what = mutations.change_value(json.loads(content), random)
        content, changes = mutations.json_text(data, random), [what]
    length, coding = str(len(content)), random.choice(["", "", "", "transfer-encoding: chunked\r\n"])
    if random.random() < 0.3:
        length = random.choice(["0", "-1", "x", "9" * 30, str(len(content) + 9), str(len(content) // 2)])
        changes.append(f"content-length {length}")
    status = random.choice(STATUSES)
    location = random.choice(["", "location: file:///etc/passwd\r\n", "location: http://[::1\r\n", "location: \r\n"])
    extra = random.choice(["", "", "x: " + "a" * 70_000 + "\r\n", "x: a\r\n" * 200, "x\r\n", "x: \x00\r\n"])
    head = (
        f"HTTP/1.1 {status} a\x1b[0mb\r\ncontent-length: {length}\r\n{coding}{location}{extra}connection: close\r\n\r\n"
    )
    sent = head.encode() + content
    changes.append(f"status {status}, {coding.strip() or 'a length'}, {location.strip()}, {extra[:9]!r}")
    if random.random() < 0.3:
        sent, what = mutations.change_bytes(sent, random)
        changes.append(what)
    return Case(
        f"answer: {'; '.join(changes)}", lambda: compare_with(originals / INDEX, sent, name), ["http://127.0.0.1:"]
    )


def compare_with(index: Path, sent: bytes, name: str | None, repeated: bytes = b"") -> object:
    """Compare an index with an endpoint that answers every request with the same bytes, and then repeats others."""
    from clearhead.retrieval.against import endpoint
    from clearhead.retrieval.against.comparison import compare

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.connection.settimeout(TIMEOUT)
            try:
                self.connection.recv(100_000)
                self.wfile.write(sent)
                while repeated:
                    self.wfile.write(repeated)
                    time.sleep(0.1)
                self.connection.shutdown(socket.SHUT_WR)
                while self.connection.recv(100_000):  # otherwise the client may get an error in place of the answer
                    pass
            except OSError:
                pass

    endpoint._TIMEOUT = TIMEOUT
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            comparison = compare(index, f"http://127.0.0.1:{server.server_address[1]}", name)
        finally:
            server.shutdown()
    if not any(distance is not None for distance in comparison.distances):
        raise ValueError(comparison.summary)
    return None


TARGET = Target(prepare, make)
