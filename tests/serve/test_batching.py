"""The batcher: all are answered, together where they can be, within its bounds."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.serve.batching import Batcher, DrainingError, OverloadedError


def doubled(key, payloads):
    return [(key, 2 * payload) for payload in payloads]


class Slow:
    """Computes when it is let; keeps what it was given."""

    def __init__(self):
        self.go, self.batches = threading.Event(), []

    def __call__(self, key, payloads):
        self.go.wait(10)
        self.batches.append((key, list(payloads)))
        return payloads


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 99), st.integers(0, 9)), max_size=40))
@settings(max_examples=30, deadline=None)
def test_every_job_gets_its_own_result(jobs):
    batcher = Batcher(doubled, batch_cost=12, queue_cost=10**6)
    batcher.start()
    futures = batcher.submit(jobs) if jobs else []
    assert [future.result(5) for future in futures] == [(key, 2 * payload) for key, payload, _ in jobs]
    assert batcher.drain(5.0)
    assert batcher.waiting == 0


def test_what_waits_is_computed_together_by_key_within_the_budget():
    slow = Slow()
    batcher = Batcher(slow, batch_cost=5, queue_cost=100)
    batcher.start()
    first = batcher.submit([("a", 0, 1)])
    while batcher.waiting and batcher._jobs:
        time.sleep(0.01)
    rest = batcher.submit([("a", 1, 2), ("b", 2, 2), ("a", 3, 3), ("a", 4, 1), ("b", 5, 9)])
    slow.go.set()
    assert [future.result(5) for future in [*first, *rest]] == [0, 1, 2, 3, 4, 5]
    assert slow.batches == [("a", [0]), ("a", [1, 3]), ("b", [2]), ("a", [4]), ("b", [5])]


def test_a_full_queue_refuses_all_of_a_request_and_recovers():
    slow = Slow()
    batcher = Batcher(slow, batch_cost=5, queue_cost=10)
    batcher.start()
    taken = batcher.submit([("a", number, 2) for number in range(5)])
    with pytest.raises(OverloadedError) as refused:
        batcher.submit([("a", 9, 1)])
    assert refused.value.retry_after >= 1
    assert batcher.waiting == 10
    slow.go.set()
    assert [future.result(5) for future in taken] == [0, 1, 2, 3, 4]
    assert batcher.submit([("a", 7, 50)])[0].result(5) == 7  # alone it may be larger than the queue


def test_one_that_fails_harms_no_other():
    def picky(key, payloads):
        if 3 in payloads:
            raise ValueError("no three")
        return payloads

    batcher = Batcher(picky, batch_cost=100, queue_cost=100)
    futures = batcher.submit([("a", number, 1) for number in range(5)])
    batcher.start()
    for number, future in enumerate(futures):
        if number == 3:
            with pytest.raises(ValueError, match="no three"):
                future.result(5)
        else:
            assert future.result(5) == number


def test_a_cancelled_job_is_not_computed():
    slow = Slow()
    batcher = Batcher(slow, batch_cost=1, queue_cost=100)
    futures = batcher.submit([("a", number, 1) for number in range(4)])
    assert futures[2].cancel()
    slow.go.set()
    batcher.start()
    assert batcher.drain(5.0)
    assert slow.batches == [("a", [0]), ("a", [1]), ("a", [3])]
    assert batcher.waiting == 0


def test_streams_go_on_between_batches_and_can_be_stopped():
    told, done = {"one": [], "two": []}, threading.Event()
    batcher = Batcher(doubled, batch_cost=1, queue_cost=100)

    def tell(name):
        def put(piece):
            told[name].append(piece)
            if name == "one" and piece is None:
                done.set()

        return put

    batcher.stream(lambda: iter([1, 2, 3]), tell("one"), 5)
    stop = batcher.stream(lambda: iter(range(10**9)), tell("two"), 5)
    (future,) = batcher.submit([("a", 4, 1)])
    batcher.start()
    assert done.wait(5)
    assert future.result(5) == ("a", 8)
    assert told["one"] == [1, 2, 3, None]
    stop()
    assert batcher.drain(5.0)
    assert told["two"][-1] is None
    assert batcher.waiting == 0


def test_a_stream_that_fails_tells_its_error():
    def broken():
        yield 1
        raise OSError("lost")

    told, done = [], threading.Event()
    batcher = Batcher(doubled, batch_cost=1, queue_cost=100)
    batcher.stream(broken, lambda piece: (told.append(piece), done.set() if isinstance(piece, OSError) else None), 1)
    batcher.start()
    assert done.wait(5)
    assert told[0] == 1
    assert str(told[1]) == "lost"


def test_draining_finishes_what_was_taken_and_takes_no_more():
    slow = Slow()
    batcher = Batcher(slow, batch_cost=1, queue_cost=100)
    futures = batcher.submit([("a", number, 1) for number in range(3)])
    batcher.start()
    assert not batcher.drain(0.05)
    with pytest.raises(DrainingError):
        batcher.submit([("a", 9, 1)])
    slow.go.set()
    assert batcher.drain(5.0)
    assert [future.result(0) for future in futures] == [0, 1, 2]
