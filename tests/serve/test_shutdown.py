"""Readiness and SIGTERM, with a real server: it always exits with status 0."""

import concurrent.futures
import json
import signal
import socket
import subprocess
import time
from urllib.parse import urlsplit

import httpx
import pytest
from support import served
from support.command import COMMAND, clearhead
from support.served import wait_until

SLOWED = """
import time
import clearhead.serve.application_state as state
step, load = state.ApplicationState._on_pass, state.load_model
def stepped(self, part, tokens):
    time.sleep(0.2 if part == "decoder" else 1.0)
    step(self, part, tokens)
def loaded(*given):
    time.sleep(1.5)
    return load(*given)
state.ApplicationState._on_pass, state.load_model = stepped, loaded
"""


def queue(server):
    return served.metric(server.address, "queue_tokens")


def embed(server):
    return httpx.post(f"{server.address}/v1/embeddings", json={"model": "bert", "input": "a"}, timeout=30)


@pytest.mark.slow
def test_not_ready_until_all_models_are_loaded(folders):
    models = {name: folders / name for name in ("bert", "marian")}
    with served.server(models, before=SLOWED, ready=False) as server:
        response = httpx.get(f"{server.address}/health/ready")
        assert (response.status_code, response.json()) == (503, {"status": "loading"})
        assert httpx.head(f"{server.address}/health/ready").status_code == 503
        assert httpx.get(f"{server.address}/health/live").status_code == 200
        wait_until(lambda: len(httpx.get(f"{server.address}/v1/models").json()["data"]) == 1)
        assert httpx.get(f"{server.address}/health/ready").status_code == 503
        assert embed(server).status_code == 503
        server.wait_until_ready()
        assert embed(server).status_code == 200


@pytest.mark.slow
def test_sigterm_finishes_requests_and_exits_with_0(folders):
    with served.server({"bert": folders / "bert"}, before=SLOWED) as server:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            futures = [pool.submit(embed, server) for _ in range(2)]
            wait_until(lambda: queue(server) == 6)  # three tokens each
            assert server.stop()[0] == 0
            assert [one.result().status_code for one in futures] == [200, 200]
        assert "Traceback" not in server.log_text()


@pytest.mark.slow
def test_sigterm_while_receiving_a_body(folders):
    head = b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"
    with served.server({"bert": folders / "bert"}) as server:
        parts = urlsplit(server.address)
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as slow:
            slow.sendall(head)
            time.sleep(0.3)
            status, seconds = server.stop()
            response = slow.makefile("rb").read()
        assert status == 0
        assert seconds < 8
        assert response.startswith(b"HTTP/1.1 503 ")
        assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["code"] == "draining"
        assert "Traceback" not in server.log_text()


@pytest.mark.slow
def test_sigterm_while_loading(folders):
    with served.server({"bert": folders / "bert"}, before=SLOWED, ready=False) as server:
        status, seconds = server.stop()
    assert status == 0
    assert seconds < 5


@pytest.mark.slow
def test_sigterm_while_starting(folders):
    process = subprocess.Popen([COMMAND, "serve", "-m", str(folders / "bert"), "--port", "0"], stderr=subprocess.PIPE)
    time.sleep(2.0)  # it imports torch, or has begun to listen
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log.decode()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_sigterm_while_generating(folders, stream):
    with served.server({"marian": folders / "marian"}, before=SLOWED, drain_seconds=1.0) as server:
        body = {"text": "the old bridge", "stream": stream, "max_new_tokens": 55}  # 11 seconds of steps
        with concurrent.futures.ThreadPoolExecutor() as pool:
            future = pool.submit(httpx.post, f"{server.address}/translate", json=body, timeout=60)
            wait_until(lambda: queue(server) > 0)
            time.sleep(0.5)
            status, seconds = server.stop()
            response = future.result()
        assert status == 0
        assert seconds < 8
        if stream:
            *_, last = [line for line in response.text.splitlines() if line.startswith("data: ")]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
        else:
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "draining"
        assert "Traceback" not in server.log_text()


@pytest.mark.slow
def test_sigterm_while_stuck(folders):
    stuck = (
        "import time, clearhead.serve.model_registry as models\nmodels.LoadedModel.run = lambda *given: time.sleep(60)"
    )
    with (
        served.server({"bert": folders / "bert"}, before=stuck, drain_seconds=0.5) as server,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        future = pool.submit(embed, server)
        wait_until(lambda: queue(server) > 0)
        status, seconds = server.stop()
        with pytest.raises(httpx.HTTPError):
            future.result().raise_for_status()
    assert status == 0
    assert seconds < 8


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["inf", "nan", "1e19", "-1"])
def test_drain_time_has_a_maximum(seconds):
    status, out, line = clearhead("serve", "--model", "all-MiniLM-L6-v2", "--drain-seconds", seconds)
    assert (status, out, line.count("\n")) == (2, "", 1)
    assert "Invalid value for '--drain-seconds': Input should be" in line
