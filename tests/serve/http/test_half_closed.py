"""Half-closed and closed connections, with a real server."""

import re
import socket
import struct
import time

import pytest
from support import served
from support.served import answer, connect, head, received, request, wait_until

SLOWED = """
import time
import clearhead.serve.model_registry as models, clearhead.serve.application_state as state
run_batch, on_pass = models.LoadedModel.run, state.ApplicationState._on_pass
def performed(self, key, payloads):
    if key.task == "embed" and any("slow" in self.handlers[key.task].pipeline.tokenizer.decode(one.ids) for one in payloads):
        time.sleep(3.0)
    return run_batch(self, key, payloads)
def stepped(self, part, tokens):
    time.sleep(0.1 if part == "decoder" else 0.0)
    on_pass(self, part, tokens)
models.LoadedModel.run, state.ApplicationState._on_pass = performed, stepped
"""
TYPED = {"model": "bert", "input": "a"}
LONG = {"text": "the storm", "max_new_tokens": 55}


@pytest.fixture(scope="module")
def address(folders):
    models = {name: folders / name for name in ("bert", "marian")}
    with served.server(models, before=SLOWED, body_seconds=600.0, header_seconds=600.0, idle_seconds=600.0) as server:
        yield server.address


def queue(address):
    return served.metric(address, "queue_tokens")


def exchanged(address, sent, *, half_closed=True):
    """Send bytes and return all bytes received until the server closes the connection."""
    with connect(address) as one:
        one.sendall(sent)
        if half_closed:
            one.shutdown(socket.SHUT_WR)
        return received(one)


ANSWERED = {
    "plain": head("/health/live", method="GET"),
    "computed": request("/v1/embeddings", TYPED),
    "slow": request("/v1/embeddings", {**TYPED, "input": "slow"}),
    "generated": request("/translate", {"text": "the storm", "max_new_tokens": 20}),
    "streamed": request("/translate", {"text": "the storm", "max_new_tokens": 20, "stream": True}),
    "large": request("/v1/embeddings", {**TYPED, "input": ["slow"] * 2000}),
    "of HTTP/1.0": request("/v1/embeddings", {**TYPED, "input": "slow"}, version="1.0"),
    "refused": request("/v1/embeddings", {"model": "none", "input": "slow"}),
    "expected": request("/v1/embeddings", {**TYPED, "input": "slow"}, "expect: 100-continue"),
    "pipelined": 3 * request("/v1/embeddings", {**TYPED, "input": "slow"}) + head("/health/live", method="GET"),
}


SLOW = {"slow", "generated", "large", "of HTTP/1.0", "expected", "pipelined"}


@pytest.mark.parametrize(
    "sent",
    [pytest.param(sent, id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name, sent in ANSWERED.items()],
)
def test_half_closed_client_receives_the_same_bytes(address, sent):
    *_, last = sent.rpartition(b"host: x\r\n")
    closing = sent.removesuffix(last) + b"connection: close\r\n" + last
    expected = exchanged(address, closing, half_closed=False)
    assert expected.startswith(b"HTTP/1.1 ")
    changing = rb"(?i)(?<=\r\n)(connection: close\r\n|(date|x-request-id): [^\r]*\r\n)"
    response = exchanged(address, sent)
    assert re.sub(changing, b"", response) == re.sub(changing, b"", expected)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n", request("/translate", LONG)[:-1]])
def test_half_closed_client_with_an_incomplete_request_is_closed(address, sent):
    assert exchanged(address, sent) == b""


def test_half_closed_idle_connection_is_closed(address):
    with connect(address) as one:
        one.sendall(request("/v1/embeddings", TYPED))
        assert answer(one)[0] == 200
        one.shutdown(socket.SHUT_WR)
        assert received(one) == b""


def reset(one):
    """Closes a connection by a reset."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


ENDINGS = {
    "closed": [socket.socket.close],
    "reset": [reset],
    "half closed, then closed": [lambda one: one.shutdown(socket.SHUT_WR), socket.socket.close],
    "half closed, then reset": [lambda one: one.shutdown(socket.SHUT_WR), reset],
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("stream", [False, True])
def test_running_request_of_a_disconnected_client_is_abandoned(address, ending, stream):
    steps = served.metric(address, "tokens_total", part="decoder")
    one = connect(address)
    one.sendall(request("/translate", {**LONG, "stream": stream, "beam_size": 1}))
    wait_until(lambda: served.metric(address, "tokens_total", part="decoder") > steps)
    for end in ending:
        end(one)
        time.sleep(0.3)
    wait_until(lambda: queue(address) == 0)
    assert served.metric(address, "tokens_total", part="decoder") - steps < 40  # of 55


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_queued_request_of_a_disconnected_client_is_not_computed(address, stream):
    with connect(address) as first:
        first.sendall(request("/v1/embeddings", {**TYPED, "input": "slow"}))
        wait_until(lambda: queue(address) > 0)
        alone, steps = queue(address), served.metric(address, "tokens_total", part="decoder")
        with connect(address) as other:
            other.sendall(request("/translate", {**LONG, "stream": stream, "beam_size": 1}))
            wait_until(lambda: queue(address) > alone)
        assert answer(first)[0] == 200
    wait_until(lambda: queue(address) == 0)
    assert served.metric(address, "tokens_total", part="decoder") == steps
