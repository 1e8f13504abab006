"""Limits on bodies, unread responses and connections, with a real server."""

import contextlib
import json
import shutil
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from support import served
from support.served import connect, request, wait_until


def embed(address, texts):
    return httpx.post(f"{address}/v1/embeddings", json={"model": "bert", "input": texts}, timeout=30)


def answered(server):
    """Return the number of completed embedding requests."""
    return served.metric(server.address, "requests_total", method="POST", path="/v1/embeddings", status="200")


TIMES = 6


def untaken(server):
    return served.metric(server.address, "answers_untaken_total")


class Deaf:
    """A client that requests more vectors than the socket buffers hold and does not read the responses at first."""

    def __init__(self, address, then=b""):
        parts = urlsplit(address)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(10)
        self._socket.connect((parts.hostname, parts.port))
        self._socket.sendall(TIMES * request("/v1/embeddings", {"model": "bert", "input": ["a"] * 2048}) + then)

    def heard(self, pause=0.0):
        """Read until the connection closes or pauses, with a pause between parts, and return the number of bytes."""
        count = 0
        with self._socket, contextlib.suppress(ConnectionResetError, TimeoutError):
            self._socket.settimeout(2)
            while part := self._socket.recv(2**16):
                count += len(part)
                time.sleep(pause)
        return count

    def close(self):
        self._socket.close()


@pytest.mark.slow
def test_incomplete_bodies_stay_within_the_memory_budget(folders):
    with served.server({"bert": folders / "bert"}, max_buffered_bytes=8 * 2**20, max_body_bytes=2**20) as server:
        before, head = server.peak_memory(), b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
        connections = [connect(server.address) for _ in range(60)]
        try:
            for one in connections:
                one.sendall(head + b" " * 999_000)
            wait_until(
                lambda: served.metric(server.address, "requests_total", method="POST", path="/translate", status="503")
            )
            assert server.peak_memory() - before < 60
        finally:
            for one in connections:
                one.close()
        wait_until(lambda: embed(server.address, "a").status_code == 200)


@pytest.mark.slow
def test_unread_responses_are_aborted(folders):
    limits = {"response_seconds": 1.0, "max_unread_bytes": 10**9, "drain_seconds": 1.0}
    with served.server({"bert": folders / "bert"}, **limits) as server:
        answer = len(embed(server.address, ["a"] * 2048).content)
        deaf = [Deaf(server.address) for _ in range(3)]
        wait_until(lambda: untaken(server) == 3)
        computed = answered(server)
        assert computed < 1 + 3 * TIMES  # requests behind an unread response wait
        for one in deaf:
            assert one.heard() < TIMES * answer
        slow = Deaf(server.address)
        time.sleep(0.5)
        assert slow.heard() > TIMES * answer  # a client that reads in time gets all of them
        assert answered(server) == computed + TIMES
        with contextlib.closing(Deaf(server.address)):
            assert server.stop()[0] == 0


@pytest.mark.slow
def test_malformed_request_behind_an_unread_response_is_harmless(folders):
    with served.server({"bert": folders / "bert"}) as server:
        deaf = Deaf(server.address, b"\x00 no request\r\n\r\n")
        time.sleep(1)
        assert deaf.heard(0.005) > TIMES * 2048 * 32  # more slowly than is computed: the last answer waits, too
        assert server.stop()[0] == 0
        assert "Traceback" not in server.log_text()


@pytest.mark.slow
def test_unread_responses_stay_within_the_memory_budget(folders):
    with served.server({"bert": folders / "bert"}, max_unread_bytes=2**16, drain_seconds=1.0) as server:
        deaf = [Deaf(server.address) for _ in range(6)]
        wait_until(lambda: untaken(server) == 5, 60)  # one alone may wait
        assert embed(server.address, "a").status_code == 200
        assert untaken(server) == 5
        status, seconds = server.stop()
        assert status == 0
        assert seconds < 8
        for one in deaf:
            one.close()


@pytest.mark.slow
def test_connection_over_the_limit_is_closed_at_once(folders):
    with served.server({"bert": folders / "bert"}, max_connections=8, header_seconds=2.0) as server:
        connections = [connect(server.address) for _ in range(4)]  # one address uses half
        start = time.monotonic()
        with connect(server.address) as more, contextlib.suppress(ConnectionResetError):
            assert more.recv(1) == b""
        assert time.monotonic() - start < 1.5
        for one in connections:
            assert one.recv(1) == b""  # idle connections have timed out
            one.close()
        assert embed(server.address, "a").status_code == 200
        assert served.metric(server.address, "connections_refused_total") == 1


@pytest.mark.slow
def test_connections_stay_within_the_limit_of_open_files(folders):
    few = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (700, 700))"
    with served.server({"bert": folders / "bert"}, before=few, header_seconds=2.0) as server:
        assert "room for 60 connections: this process may open 700 files" in server.log_text()
        connections = [connect(server.address) for _ in range(800)]
        time.sleep(3.0)
        assert embed(server.address, "a").status_code == 200
        # those that send nothing leave after two seconds, and 60 others have their places: once or twice meanwhile
        assert served.metric(server.address, "connections_refused_total") >= 800 - 3 * 60
        for one in connections:
            one.close()
        assert "out of system resource" not in server.log_text()


@pytest.mark.slow
def test_report_whose_beams_are_too_much_work_is_400(folders, tmp_path):
    folder = shutil.copytree(folders / "marian", tmp_path / "marian")
    (folder / "generation_config.json").write_text(json.dumps({"num_beams": 30}))
    with served.server({"marian": folder}, queue_tokens=100) as server:
        response = httpx.post(f"{server.address}/view", json={"text": "hello"}, timeout=60)
        assert response.status_code == 400
        assert "this server takes 100 at a time" in response.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("beams", [10**6, 2**31])
def test_model_with_more_beams_than_tokens_ends_the_server(folders, tmp_path, beams):
    folder = shutil.copytree(folders / "marian", tmp_path / "marian")
    (folder / "generation_config.json").write_text(json.dumps({"num_beams": beams}))
    with served.command("--model", folder, ready=False) as server:
        assert server.process.wait(60) == 1
        assert f"marian/generation_config.json: num_beams is {beams}; expected at most" in server.log_text()
