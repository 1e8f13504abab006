"""Limits per client, with a real server: one client cannot use up a shared limit."""

import contextlib
import select

import httpx
import pytest
from support import served
from support.served import answer, connect, head, received, request, wait_until

KEYS = ["greedy-key-0123456789", "polite-key-0123456789"]
GREEDY, POLITE = ({"authorization": f"Bearer {key}"} for key in KEYS)
LIMITS = {"max_buffered_bytes": 2**20, "max_body_bytes": 2**17, "body_seconds": 600.0}
SLOWED = """
import time, clearhead.serve.model_registry as models
run_batch = models.LoadedModel.run
def performed(self, key, payloads):
    if any("slow" in self.handlers[key.task].pipeline.tokenizer.decode(one.ids) for one in payloads):
        time.sleep(3.0)
    return run_batch(self, key, payloads)
models.LoadedModel.run = performed
"""


@contextlib.contextmanager
def greedy(address, headers=None, count=16):
    """Open clients that send a large body except its last bytes; yields their sockets."""
    lines = [f"{name}: {value}" for name, value in (headers or {}).items()]
    sockets = [connect(address) for _ in range(count)]
    try:
        for one in sockets:
            with contextlib.suppress(ConnectionError):
                one.sendall(head("/v1/embeddings", "content-length: 131072", *lines) + b" " * 131_000)
        yield sockets
    finally:
        for one in sockets:
            one.close()


def answered(sockets):
    """Return the sockets that have received data."""
    return select.select(sockets, [], [], 0)[0]


def embed(address, headers=None, source="127.0.0.1", text="a"):
    body = {"model": "bert", "input": text, "truncate": True}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=60) as client:
        return client.post(f"{address}/v1/embeddings", json=body, headers=headers)


def check_refused(sockets):
    for one in sockets:
        status, headers, _ = answer(one)
        assert status == 503
        assert int(headers["retry-after"]) >= 1


@pytest.mark.slow
def test_slow_bodies_of_one_key_leave_room_for_other_keys(folders):
    with (
        served.server({"bert": folders / "bert"}, api_keys=KEYS, **LIMITS) as server,
        greedy(server.address, GREEDY) as connections,
    ):
        wait_until(lambda: len(answered(connections)) >= 8)
        check_refused(answered(connections))
        for _ in range(3):
            assert embed(server.address, POLITE, text="a " * 60_000).status_code == 200
        with greedy(server.address, POLITE, count=1) as one:
            assert not answered(one)
            one[0].sendall(b" " * 71 + b"!")
            wait_until(lambda: answered(one))
            assert answer(one[0])[0] == 422


@pytest.mark.slow
def test_slow_bodies_of_one_address_leave_room_for_other_addresses(folders):
    with served.server({"bert": folders / "bert"}, **LIMITS) as server, greedy(server.address) as connections:
        wait_until(lambda: len(answered(connections)) >= 8)
        check_refused(answered(connections))
        assert embed(server.address, source="127.0.0.2", text="a " * 60_000).status_code == 200
        # a header that any client can send does not choose its budget
        forged = embed(server.address, {"x-forwarded-for": "10.0.0.9"}, text="a " * 60_000)
        assert forged.status_code == 503


@pytest.mark.slow
def test_bodies_without_a_key_are_rejected_before_they_arrive(folders):
    endless = "import clearhead.serve.http.request_bodies as bodies\nbodies._DRAIN_SECONDS = 600.0"
    with (
        served.server({"bert": folders / "bert"}, api_keys=KEYS, before=endless, **LIMITS) as server,
        greedy(server.address) as connections,
    ):
        wait_until(lambda: len(answered(connections)) == 16)
        for one in connections:
            status, headers, _ = answer(one)
            assert status == 401
            assert headers["connection"] == "close"
        for path in ("/health/live", "/docs"):  # paths without a key accept no body either
            with connect(server.address) as one:
                one.sendall(head(path, "content-length: 131072", method="GET") + b" " * 1000)
                assert answer(one)[0] == 200
        for _ in range(3):
            assert embed(server.address, GREEDY, text="a " * 60_000).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("length", ["content-length: 131072", "transfer-encoding: chunked", "expect: 100-continue"])
def test_client_without_a_key_cannot_hold_a_connection(folders, length):
    waits = length.startswith("expect")
    lines = [length, "content-length: 131072"] if waits else [length]
    with served.server({"bert": folders / "bert"}, api_keys=KEYS, **LIMITS) as server, connect(server.address) as one:
        one.sendall(head("/v1/embeddings", *lines))
        one.settimeout(0.1)
        received = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(600):  # a minute
                if not waits:
                    one.sendall(b"1\r\nx\r\n")
                with contextlib.suppress(TimeoutError):
                    part = one.recv(2**16)
                    received += part
                    if not part:
                        break
            else:
                pytest.fail("the connection was never closed")
        assert received.startswith(b"HTTP/1.1 401 ")
        assert server.stop()[0] == 0
        assert "Traceback" not in server.log_text()


@pytest.mark.slow
def test_malformed_chunk_after_a_response_is_harmless(folders):
    with served.server({"bert": folders / "bert"}, api_keys=KEYS, **LIMITS) as server, connect(server.address) as one:
        one.sendall(head("/v1/embeddings", "transfer-encoding: chunked"))
        wait_until(lambda: answered([one]))
        one.sendall(b"no chunk\r\n")
        assert received(one).count(b"HTTP/1.1 ") == 1
        assert embed(server.address, POLITE).status_code == 200
        assert server.stop()[0] == 0
        assert "Traceback" not in server.log_text()


@pytest.mark.slow
def test_one_key_cannot_fill_the_queue(folders):
    limits = {"api_keys": KEYS, "queue_tokens": 96, "batch_tokens": 12}
    with served.server({"bert": folders / "bert"}, before=SLOWED, drain_seconds=0.5, **limits) as server:
        body = {"model": "bert", "input": ["slow"] * 4}  # 12 tokens
        connections = [connect(server.address) for _ in range(20)]
        for one in connections:
            one.sendall(request("/v1/embeddings", body, f"authorization: Bearer {KEYS[0]}"))
        wait_until(lambda: len(answered(connections)) >= 12)
        for one in answered(connections):
            status, headers, _ = answer(one)
            assert status == 429
            assert int(headers["retry-after"]) >= 1
        assert embed(server.address, POLITE).status_code == 200
        for one in connections:
            one.close()


@pytest.mark.slow
@pytest.mark.parametrize("keys", [[], KEYS], ids=["without keys", "with keys"])
def test_one_address_cannot_use_all_connections(folders, keys):
    limits, headers = {"max_connections": 8, "header_seconds": 600.0, "api_keys": keys}, POLITE if keys else None
    with served.server({"bert": folders / "bert"}, **limits) as server:
        connections = [connect(server.address) for _ in range(8)]
        wait_until(lambda: len(answered(connections)) == 4)  # closed
        assert embed(server.address, headers, source="127.0.0.2").status_code == 200
        for one in connections:
            one.close()
        wait_until(lambda: embed(server.address, headers).status_code == 200)
