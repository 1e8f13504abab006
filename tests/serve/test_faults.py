"""What goes wrong out there, against the real server: clients that go away, dawdle, send too much; models that fail."""

import concurrent.futures
import json
import signal
import socket
import time
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from support import families, served
from support.folders import marian

from clearhead import TextEncoder

SLOWED = """
import functools, time
import clearhead.serve.app as app, clearhead.serve.models as models, clearhead.serve.protocol as protocol
protocol.HEADER_SECONDS = 1.0
app.Settings = functools.partial(app.Settings, body_seconds=1.0, largest_body=100_000)
perform = models.Served.perform
def performed(self, key, payloads):
    texts = [self.uses["embed"].tokenizer.decode(one.ids) if hasattr(one, "ids") else str(one) for one in payloads]
    if any("slow" in text for text in texts):
        time.sleep(1.0)
    if any("bridge" in text for text in texts):
        raise RuntimeError(f"cannot do {texts}")
    return perform(self, key, payloads)
models.Served.perform = performed
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    (place / "bert").mkdir()
    families.make("bert", place / "bert")
    (place / "marian").mkdir()
    marian(place / "marian")
    return place


@pytest.fixture(scope="module")
def address(folder):
    models = ["-m", f"bert={folder / 'bert'}", "-m", f"marian={folder / 'marian'}", "--precision", "float32"]
    with served.server(*models, before=SLOWED) as (found, _):
        yield found


def embed(address, texts, **options):
    return httpx.post(f"{address}/v1/embeddings", json={"model": "bert", "input": texts}, timeout=30, **options)


def connected(address):
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=10)


def until(condition, seconds=10):
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop, "it did not come to pass"
        time.sleep(0.05)


def test_what_a_client_that_has_gone_asked_for_is_not_computed(address):
    before = served.metric(address, "tokens_total")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(embed, address, "slow")
        until(lambda: served.metric(address, "queue_tokens") > 0)
        alone = served.metric(address, "queue_tokens")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/v1/embeddings", json={"model": "bert", "input": ["the storm"] * 500}, timeout=0.3)
        assert first.result().status_code == 200
    until(lambda: served.metric(address, "queue_tokens") == 0)
    assert served.metric(address, "tokens_total") - before == alone


def test_slow_headers_and_slow_bodies_are_not_waited_for(address):
    with connected(address) as slow:
        slow.sendall(b"POST /translate HTTP/1.1\r\nhost: x\r\n")
        start = time.monotonic()
        assert slow.recv(1000) == b""
        assert 0.5 < time.monotonic() - start < 5
    with connected(address) as slow:
        slow.sendall(
            b"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"
        )
        assert b" 408 " in slow.recv(1000)
    assert embed(address, "a").status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413(address, chunked):
    body = json.dumps({"model": "bert", "input": "a" * 200_000}).encode()
    content = (body[place : place + 10_000] for place in range(0, len(body), 10_000)) if chunked else body
    try:
        response = httpx.post(
            f"{address}/v1/embeddings", content=content, headers={"content-type": "application/json"}, timeout=10
        )
    except httpx.WriteError:  # it may close before all of it is sent
        assert chunked
    else:
        assert response.status_code == 413
        assert "larger than 100,000 bytes" in response.json()["error"]["message"]


def test_a_request_that_makes_the_model_fail_harms_no_other(address, folder):
    wanted = TextEncoder.from_pretrained(folder / "bert", precision="float32", device="cpu").encode(["the storm"])
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        slow = pool.submit(embed, address, "slow")  # so that all others are one batch
        until(lambda: served.metric(address, "queue_tokens") > 0)
        good = [pool.submit(embed, address, "the storm") for _ in range(8)]
        bad = pool.submit(embed, address, "the bridge")
        assert slow.result().status_code == 200
        for one in good:
            vector = one.result().json()["data"][0]["embedding"]
            np.testing.assert_allclose([vector], wanted, atol=1e-5, rtol=1e-5)
    response = bad.result()
    assert response.status_code == 500
    message = response.json()["error"]["message"]
    assert message == f"something went wrong here; request {response.headers['x-request-id']}"


def test_connections_that_end_in_the_middle_leave_nothing(address):
    for sent in (b"", b"\x00\xff\x00", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"):
        with connected(address) as one:
            one.sendall(sent)
    assert embed(address, "a").status_code == 200


def test_a_wrong_or_missing_key_is_401(folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# the first client's\nfirst-key-0123456789\n\nother-key-0123456789\n")
    with served.server("-m", f"bert={folder / 'bert'}", "--api-key-file", keys) as (address, _):
        for header in (None, "Bearer", "Bearer first-key", "Basic first-key-0123456789", "Bearer \u00e9\u00e9"):
            headers = {} if header is None else {"authorization": header.encode("utf-8")}
            response = embed(address, "a", headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert "key-0123" not in response.text
        for key in ("first-key-0123456789", "other-key-0123456789"):
            assert embed(address, "a", headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert httpx.get(f"{address}/metrics").status_code == 401
        assert httpx.get(f"{address}/health/ready").status_code == 200


def test_sigterm_lets_it_finish_and_end_with_0(folder):
    with served.server("-m", f"bert={folder / 'bert'}", before=SLOWED) as (address, process):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = [pool.submit(embed, address, "slow") for _ in range(2)]
            until(lambda: served.metric(address, "queue_tokens") > 0)
            process.send_signal(signal.SIGTERM)
            assert [one.result().status_code for one in asked] == [200, 200]
        assert process.wait(20) == 0
        _, said = process.communicate()
        assert b"Traceback" not in said


def test_after_sigkill_under_load_a_restart_serves_at_once(folder):
    models, port = ["-m", f"bert={folder / 'bert'}"], served.free_port()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with served.server(*models, before=SLOWED, port=port) as (address, process):
            asked = [pool.submit(embed, address, "slow") for _ in range(4)]
            until(lambda: served.metric(address, "queue_tokens") > 0)
            process.kill()
            for one in asked:
                with pytest.raises(httpx.HTTPError):
                    one.result()
        with served.server(*models, port=port) as (address, _):
            assert embed(address, "a").status_code == 200


def test_neither_errors_nor_logs_hold_texts_paths_or_traces(folder):
    secret = "the bridge zebra-4711"
    with served.server("-m", f"bert={folder / 'bert'}", before=SLOWED) as (address, process):
        answers = [
            embed(address, secret),
            httpx.post(f"{address}/v1/embeddings", json={"model": secret, "input": "a"}),
            httpx.post(f"{address}/v1/embeddings", json={"model": "bert", "input": {"a": secret}}),
            httpx.post(f"{address}/v1/embeddings", content=f'{{"input": "{secret}'.encode()),
            httpx.get(f"{address}/{secret}"),
        ]
        assert [one.status_code for one in answers] == [500, 404, 422, 422, 404]
        for one in answers:
            assert "Traceback" not in one.text
            assert str(folder) not in one.text
            assert "site-packages" not in one.text
        for one in (answers[0], *answers[2:]):  # the model's name is said, for the client to find its mistake
            assert "zebra" not in one.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        _, said = process.communicate()
    assert b"zebra" not in said
    assert answers[0].headers["x-request-id"].encode() in said


def test_overload_is_refused_at_once_and_passes(folder):
    models = ["-m", f"bert={folder / 'bert'}", "--queue-tokens", "400"]
    with served.server(*models, before=SLOWED) as (address, _):
        assert embed(address, "a").status_code == 200
        body = {"model": "bert", "input": ["the storm after the storm"] * 10}
        with concurrent.futures.ThreadPoolExecutor(64) as pool, httpx.Client(timeout=30) as client:
            slow = pool.submit(embed, address, "slow")
            until(lambda: served.metric(address, "queue_tokens") > 0)
            start = time.monotonic()
            many = list(pool.map(lambda _: client.post(f"{address}/v1/embeddings", json=body), range(300)))
            assert slow.result().status_code == 200
        codes = [one.status_code for one in many]
        assert set(codes) == {200, 429}
        refused = [one for one in many if one.status_code == 429]
        assert len(refused) > 100
        assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
        assert min(one.elapsed.total_seconds() for one in refused) < 0.5
        assert time.monotonic() - start < 20
        until(lambda: served.metric(address, "queue_tokens") == 0)
        assert embed(address, "a").status_code == 200
        assert served.metric(address, "refused_total") == len(refused)
