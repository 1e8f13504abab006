"""The batcher: batches, fair queueing, cancellation and draining."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.serve import batching
from clearhead.serve.batching import Batcher
from clearhead.serve.http.errors import InvalidRequestError, OverloadedError, RequestAbandonedError, ShuttingDownError
from clearhead.serve.http.responses import wait_for_results
from clearhead.serve.routes import inference


def submit(batcher, jobs):
    """Submit jobs of a new client without releasing the reservation."""
    reservation = batcher.reserve(1, object())
    try:
        return reservation.submit(jobs)
    except Exception:
        reservation.release()
        raise


def doubled(key, payloads):
    return [(key, 2 * payload) for payload in payloads]


class Slow:
    """Wait for an event, then compute; records the batches."""

    def __init__(self):
        self.go, self.batches = threading.Event(), []

    def __call__(self, key, payloads):
        self.go.wait(10)
        self.batches.append((key, list(payloads)))
        return payloads


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 99), st.integers(0, 9)), max_size=40))
@settings(max_examples=30, deadline=None)
def test_every_job_gets_its_own_result(jobs):
    batcher = Batcher(doubled, max_batch_cost=12, max_queue_cost=10**6)
    batcher.start()
    futures = submit(batcher, jobs) if jobs else []
    assert [future.result(5) for future in futures] == [(key, 2 * payload) for key, payload, _ in jobs]
    assert batcher.drain(5.0)
    assert batcher.pending_cost == 0


def test_jobs_with_the_same_key_share_batches_within_the_budget():
    slow = Slow()
    batcher = Batcher(slow, max_batch_cost=5, max_queue_cost=100)
    batcher.start()
    first = submit(batcher, [("a", 0, 1)])
    while batcher.pending_cost and batcher._jobs:
        time.sleep(0.01)
    rest = submit(batcher, [("a", 1, 2), ("b", 2, 2), ("a", 3, 3), ("a", 4, 1), ("b", 5, 9)])
    slow.go.set()
    assert [future.result(5) for future in [*first, *rest]] == [0, 1, 2, 3, 4, 5]
    assert slow.batches == [("a", [0]), ("a", [1, 3]), ("b", [2]), ("a", [4]), ("b", [5])]


def test_full_queue_rejects_the_whole_request_and_recovers():
    slow = Slow()
    batcher = Batcher(slow, max_batch_cost=5, max_queue_cost=10)
    batcher.start()
    futures = submit(batcher, [("a", number, 2) for number in range(5)])
    with pytest.raises(OverloadedError) as refused:
        submit(batcher, [("a", 9, 1)])
    assert refused.value.retry_after >= 1
    assert batcher.pending_cost == 10
    slow.go.set()
    assert [future.result(5) for future in futures] == [0, 1, 2, 3, 4]
    until_empty(batcher)
    with pytest.raises(InvalidRequestError, match="50 tokens of work; this server takes 10 at a time"):
        submit(batcher, [("a", 7, 50)])  # also alone: it would never have room
    assert submit(batcher, [("a", 7, 10)])[0].result(5) == 7


def test_estimate_reserves_room_until_it_is_replaced():
    batcher = Batcher(doubled, max_batch_cost=5, max_queue_cost=10)
    with batcher.reserve(99, object()) as whole:
        assert batcher.pending_cost == 10
        with pytest.raises(OverloadedError):
            batcher.reserve(1, object())
        whole.submit([("a", 1, 3)])
        assert batcher.pending_cost == 3
        other = batcher.reserve(7, object())
        with pytest.raises(OverloadedError):
            other.submit([("a", 1, 8)])
        other.release()
        other.release()
        assert batcher.pending_cost == 3
    assert batcher.pending_cost == 0


@pytest.mark.parametrize("streams", [False, True])
def test_request_without_room_is_not_tokenized(streams):
    def prepare(body):
        raise AssertionError("tokenized")

    handler = SimpleNamespace(wants_stream=lambda body: streams, estimate=lambda body: 1, prepare=prepare)
    model = SimpleNamespace(handlers={"embeddings": handler}, name="a")
    batcher = Batcher(doubled, max_batch_cost=5, max_queue_cost=10)
    state = SimpleNamespace(batcher=batcher, model=lambda *args: model)
    request = SimpleNamespace(scope={"client_id": object()})
    body = SimpleNamespace(model="a")
    with pytest.raises(AssertionError, match="tokenized"):
        asyncio.run(inference._respond(state, request, "embeddings", body))
    with batcher.reserve(10, object()), pytest.raises(OverloadedError):
        asyncio.run(inference._respond(state, request, "embeddings", body))


def test_large_request_does_not_delay_later_requests():
    slow = Slow()
    batcher = Batcher(slow, max_batch_cost=2, max_queue_cost=100)
    submit(batcher, [("a", number, 2) for number in range(5)])
    submit(batcher, [("b", 9, 1)])
    slow.go.set()
    batcher.start()
    assert batcher.drain(5.0)
    assert [key for key, _ in slow.batches] == ["a", "b", "a", "a", "a", "a"]


def test_client_with_many_requests_does_not_delay_another():
    slow = Slow()
    batcher = Batcher(slow, max_batch_cost=2, max_queue_cost=100)
    for client, key, count in (("greedy", "a", 9), ("polite", "b", 2)):
        for number in range(count):
            batcher.reserve(2, client).submit([(key, number, 2)])
    slow.go.set()
    batcher.start()
    assert batcher.drain(5.0)
    assert [key for key, _ in slow.batches] == [*"ababaaaaaaa"]


def test_client_with_many_streams_does_not_delay_another():
    batcher = Batcher(doubled, max_batch_cost=2, max_queue_cost=100)
    events = []
    for client, count in (("greedy", 9), ("polite", 1)):
        for number in range(count):
            name = f"{client} {number}"
            batcher.reserve(1, client).stream(lambda: iter(range(4)), lambda item, name=name: events.append(name), 1)
    batcher.start()
    assert batcher.drain(5.0)
    assert len(events) == 10 * 5
    polite = [number for number, name in enumerate(events) if name == "polite 0"]
    assert max(polite) < 10  # each second step
    assert events[::2][:5] == [f"greedy {number}" for number in range(5)]


@pytest.mark.parametrize(("cost", "seconds", "sizes"), [(2048, 0.1, [8, 5, 5, 2]), (256, 1.0, [8, 4, 4, 4])])
def test_measured_speed_limits_the_time_of_a_batch(monkeypatch, cost, seconds, sizes):
    clock, batches = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def run(key, payloads):
        batches.append(len(payloads))
        clock.now += seconds * len(payloads)
        return payloads

    batcher = Batcher(run, max_batch_cost=8 * cost, max_queue_cost=10**6)
    submit(batcher, [("a", number, cost) for number in range(20)])
    batcher.start()
    assert batcher.drain(5.0)
    assert batches == sizes


def until_empty(batcher):
    stop = time.monotonic() + 5
    while batcher.pending_cost:
        assert time.monotonic() < stop
        time.sleep(0.01)


def test_failing_job_does_not_fail_others_and_few_jobs_are_retried():
    tried = []

    def picky(key, payloads):
        tried.append(len(payloads))
        if 3 in payloads:
            raise ValueError("no three")
        return payloads

    batcher = Batcher(picky, max_batch_cost=100, max_queue_cost=100)
    futures = submit(batcher, [("a", number, 1) for number in range(64)])
    batcher.start()
    for number, future in enumerate(futures):
        if number == 3:
            with pytest.raises(ValueError, match="no three"):
                future.result(5)
        else:
            assert future.result(5) == number
    assert len(tried) == 1 + 2 * 6


def test_wrong_number_of_results_is_an_error_but_does_not_stop_the_batcher():
    batcher = Batcher(
        lambda key, payloads: payloads[:1] if key == "few" else payloads, max_batch_cost=9, max_queue_cost=100
    )
    batcher.start()
    few = submit(batcher, [("few", 1, 1), ("few", 2, 1)])
    assert [future.result(5) for future in few] == [1, 2]  # each is tried alone
    batcher._run_batch = lambda key, payloads: []
    (none,) = submit(batcher, [("a", 1, 1)])
    with pytest.raises(RuntimeError, match="1 jobs gave 0 results"):
        none.result(5)
    assert batcher.alive


def test_released_jobs_are_not_computed():
    slow = Slow()
    batcher = Batcher(slow, max_batch_cost=1, max_queue_cost=100)
    submit(batcher, [("a", 0, 1)])
    with batcher.reserve(5, object()) as reservation:
        reservation.submit([("a", 1, 1), ("a", 2, 1)])
    submit(batcher, [("a", 3, 1)])
    assert batcher.pending_cost == 2
    slow.go.set()
    batcher.start()
    assert batcher.drain(5.0)
    assert slow.batches == [("a", [0]), ("a", [3])]
    assert batcher.pending_cost == 0


def test_failing_part_ends_its_request():
    records = []

    def compute(key, payloads):
        time.sleep(0.01)
        records.extend(payloads)
        if 0 in payloads:
            raise RuntimeError("no")
        return payloads

    class There:
        async def receive(self):
            await asyncio.sleep(60)

    async def ask():
        with batcher.reserve(1, object()) as reservation:
            await wait_for_results(There(), reservation, [("a", number, 1) for number in range(200)])

    batcher = Batcher(compute, max_batch_cost=1, max_queue_cost=1000)
    batcher.start()
    with pytest.raises(RuntimeError, match="no"):
        asyncio.run(ask())
    assert batcher.drain(5.0)
    assert len(records) < 100


def test_abandoned_batch_ends_at_its_next_pass():
    began = threading.Event()

    def steps(key, payloads):
        began.set()
        for _ in range(1000):
            time.sleep(0.01)
            batcher.check_cancelled()
        return payloads

    batcher = Batcher(steps, max_batch_cost=9, max_queue_cost=100)
    one, other = batcher.reserve(1, object()), batcher.reserve(1, object())
    futures = [*one.submit([("a", 1, 1)]), *other.submit([("a", 2, 1)])]
    batcher.start()
    assert began.wait(5)
    one.release()
    time.sleep(0.1)
    assert not futures[0].done()  # the other's client is still there
    other.release()
    for future in futures:
        with pytest.raises(RequestAbandonedError):
            future.result(1)
    until_empty(batcher)


def test_streams_advance_between_batches_and_can_be_released():
    items, done = {"one": [], "two": []}, threading.Event()
    batcher = Batcher(doubled, max_batch_cost=1, max_queue_cost=100)

    def tell(name):
        def put(piece):
            items[name].append(piece)
            if name == "one" and piece is None:
                done.set()

        return put

    batcher.reserve(5, object()).stream(lambda: iter([1, 2, 3]), tell("one"), 5)
    two = batcher.reserve(5, object())
    two.stream(lambda: iter(range(10**9)), tell("two"), 5)
    (future,) = submit(batcher, [("a", 4, 1)])
    batcher.start()
    assert done.wait(5)
    assert future.result(5) == ("a", 8)
    assert items["one"] == [1, 2, 3, None]
    two.release()
    assert batcher.drain(5.0)
    assert items["two"][-1] is None
    assert batcher.pending_cost == 0


def test_streams_get_as_much_time_as_batches():
    computed = []

    def slow(key, payloads):
        time.sleep(0.1)
        computed.append(payloads)
        return payloads

    done = threading.Event()
    batcher = Batcher(slow, max_batch_cost=1, max_queue_cost=1000)
    submit(batcher, [("a", number, 1) for number in range(50)])
    batcher.reserve(1, object()).stream(
        lambda: iter(range(40)), lambda piece: done.set() if piece is None else time.sleep(0.001), 1
    )
    batcher.start()
    assert done.wait(5)
    assert len(computed) < 10  # and not one per item
    batcher.close(0.0)
    assert batcher.drain(5.0)


def test_failing_stream_sends_its_error():
    def broken():
        yield 1
        raise OSError("lost")

    items, done = [], threading.Event()
    batcher = Batcher(doubled, max_batch_cost=1, max_queue_cost=100)
    batcher.reserve(1, object()).stream(
        broken, lambda piece: (items.append(piece), done.set() if isinstance(piece, OSError) else None), 1
    )
    batcher.start()
    assert done.wait(5)
    assert items[0] == 1
    assert str(items[1]) == "lost"


def test_drain_finishes_accepted_requests_and_accepts_no_more():
    slow = Slow()
    batcher = Batcher(slow, max_batch_cost=1, max_queue_cost=100)
    futures = submit(batcher, [("a", number, 1) for number in range(3)])
    batcher.start()
    assert not batcher.drain(0.05)
    with pytest.raises(ShuttingDownError):
        submit(batcher, [("a", 9, 1)])
    slow.go.set()
    assert batcher.drain(5.0)
    assert [future.result(0) for future in futures] == [0, 1, 2]


def test_drain_waits_for_reserved_requests():
    batcher = Batcher(doubled, max_batch_cost=1, max_queue_cost=100)
    reservation = batcher.reserve(1, object())
    batcher.start()
    assert not batcher.drain(0.05)
    (future,) = reservation.submit([("a", 1, 5)])
    assert future.result(5) == ("a", 2)
    assert batcher.drain(5.0)


def test_remaining_work_is_cancelled_after_the_deadline():
    def endless(key, payloads):
        while True:
            time.sleep(0.01)
            batcher.check_cancelled()

    batcher = Batcher(endless, max_batch_cost=1, max_queue_cost=100)
    futures, results = submit(batcher, [("a", number, 1) for number in range(3)]), []
    batcher.reserve(1, object()).stream(lambda: (batcher.check_cancelled() for _ in range(10**9)), results.append, 1)
    batcher.start()
    batcher.close(0.2)
    start = time.monotonic()
    assert batcher.drain(5.0)
    assert time.monotonic() - start < 2
    for future in futures:
        with pytest.raises(ShuttingDownError):
            future.result(0)
    assert isinstance(results[-1], ShuttingDownError)
    assert batcher.pending_cost == 0
