"""Overload and fairness, with a real server: the queue is bounded, and excess requests fail at once."""

import concurrent.futures
import statistics
import time

import httpx
import pytest
from support import served
from support.served import wait_until

BATCH_SECONDS = 2.0
SLOWED = f"""
import time
import clearhead.serve.model_registry as models
run_batch = models.LoadedModel.run
def performed(self, key, payloads):
    time.sleep({BATCH_SECONDS} if key.task == "embed" else 0.0)
    return run_batch(self, key, payloads)
models.LoadedModel.run = performed
"""
LARGE = {"model": "bert", "input": ["the storm closed the old bridge " * 150] * 20, "truncate": True}  # 100 kB
COST = 20 * 36


def embed(address, texts="a"):
    return httpx.post(f"{address}/v1/embeddings", json={"model": "bert", "input": texts}, timeout=60)


def insistent(address, stop):
    """Send requests in a loop and return their statuses and seconds."""
    results = []
    with httpx.Client(timeout=60) as client:
        while time.monotonic() < stop:
            response = client.post(f"{address}/v1/embeddings", json=LARGE)
            results.append((response.status_code, response.elapsed.total_seconds()))
            assert response.status_code == 200 or int(response.headers["retry-after"]) >= 1
            time.sleep(0.5)
    return results


@pytest.mark.slow
def test_overload_is_rejected_at_once_and_ends(folders):
    room = 4 * COST  # one client can use half of it
    with (
        served.server({"bert": folders / "bert"}, before=SLOWED, queue_tokens=room) as server,
        concurrent.futures.ThreadPoolExecutor(40) as pool,
    ):
        address, waiting = server.address, []
        assert embed(address).status_code == 200
        memory, stop = server.peak_memory(), time.monotonic() + 4 * BATCH_SECONDS
        clients = [pool.submit(insistent, address, stop) for _ in range(40)]
        while time.monotonic() < stop:
            waiting.append(served.metric(address, "queue_tokens"))
            time.sleep(0.05)
        results = [one for client in clients for one in client.result()]
        wait_until(lambda: served.metric(address, "queue_tokens") == 0)
        latencies = [seconds for status, seconds in results if status == 200]
        refused = [seconds for status, seconds in results if status == 429]
        assert len(latencies) + len(refused) == len(results)
        assert len(latencies) >= 4
        assert len(refused) > 10 * len(latencies)
        assert statistics.quantiles(refused, n=20)[-1] < min(BATCH_SECONDS, statistics.median(latencies) / 2)
        assert 0 < max(waiting) <= room
        assert server.peak_memory() - memory < 150
        assert embed(address).status_code == 200
        assert served.metric(address, "refused_total") == len(refused)


@pytest.mark.slow
def test_request_larger_than_the_queue_is_400(folders):
    with served.server({"bert": folders / "bert"}, queue_tokens=100) as server:
        response = embed(server.address, ["the old bridge"] * 50)
        assert response.status_code == 400
        assert "this server takes 100 at a time: send less" in response.json()["error"]["message"]
        assert "retry-after" not in response.headers
        assert embed(server.address, ["the old bridge"] * 2).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_short_translation_is_not_starved_by_embeddings(folders, stream):
    models = {name: folders / name for name in ("bert", "marian")}
    with (
        served.server(models, before=SLOWED, batch_tokens=12) as server,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        address = server.address
        heavy = pool.submit(embed, address, ["the old bridge"] * 16)  # two fit into a batch
        wait_until(lambda: served.metric(address, "queue_tokens") > 0)
        body = {"text": "the storm", "stream": stream, "max_new_tokens": 20, "beam_size": 1}
        assert httpx.post(f"{address}/translate", json=body, timeout=60).status_code == 200
        assert not heavy.done()  # it did not wait for a batch before each of its 20 tokens
        assert heavy.result().status_code == 200


DOCUMENT = "the old bridge was closed after the storm. " * 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/summarize", {"text": DOCUMENT, "max_new_tokens": 2}),
        ("/answer", {"question": "what?", "context": DOCUMENT, "model": "marian"}),
        ("/answer", {"question": "what?", "context": DOCUMENT, "model": "reader"}),
    ],
)
def test_long_document_alternates_with_other_requests(folders, path, body):
    slowed = SLOWED.replace('if key.task == "embed" else 0.0', "/ 4")
    models = {name: folders / name for name in ("reader", "marian", "bert")}
    limits = {"tasks": ["marian=summarize,answer"], "batch_tokens": 12}
    with served.server(models, before=slowed, **limits) as server, concurrent.futures.ThreadPoolExecutor() as pool:
        long = pool.submit(httpx.post, f"{server.address}{path}", json=body, timeout=120)
        wait_until(lambda: served.metric(server.address, "batch_jobs_count") > 0)  # it has begun
        assert embed(server.address).status_code == 200
        assert not long.done()
        assert long.result().status_code == 200, long.result().text


SLOWLY_PREPARED = """
import time
from clearhead.serve.handlers import HANDLERS
for handler in HANDLERS:
    def prepare(self, body, before=handler.prepare):
        time.sleep(1.0)
        return before(self, body)
    handler.prepare = prepare
"""


@pytest.mark.slow
def test_texts_over_the_limit_use_the_queue_while_they_are_counted(folders):
    texts = ["long " * 199_999] * 4
    bodies = {
        "/v1/embeddings": {"model": "bert", "input": texts},
        "/classify": {"text": texts},
        "/translate": {"text": texts, "max_new_tokens": 1},
    }
    models = {name: folders / name for name in ("bert", "classifier", "marian")}
    with (
        served.server(models, before=SLOWLY_PREPARED, queue_tokens=40_000) as server,
        concurrent.futures.ThreadPoolExecutor(5) as pool,
    ):
        for path, body in bodies.items():

            def post(body, url=server.address + path):
                return httpx.post(url, json=body, timeout=60).status_code

            assert sorted(set(pool.map(post, [body] * 5))) == [400, 429]
            assert set(pool.map(post, [body | {"truncate": True}] * 5)) == {200}
