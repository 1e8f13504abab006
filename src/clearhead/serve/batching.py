"""Requests of many clients as batches: one thread computes, and what waits for it is bounded."""

import collections
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

Perform = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""From a key and the payloads of its jobs to their results, in their order."""


class OverloadedError(Exception):
    """The queue is full.

    Args:
        retry_after: seconds after which there should be room.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class DrainingError(Exception):
    """The server is about to end, and takes nothing more."""


@dataclass(eq=False)
class _Job:
    key: Hashable
    payload: Any
    cost: int
    future: "Future[Any]"
    came: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Stream:
    """A result that comes in pieces; each is told as it is computed, then None, or the error."""

    make: Callable[[], Iterator[Any]]
    tell: Callable[[Any], None]
    cost: int
    stopped: threading.Event = field(default_factory=threading.Event)
    pieces: Iterator[Any] | None = None


class Batcher:
    """Jobs of the same key are computed together, the oldest first, within a budget of their costs.

    Args:
        perform: computes some jobs of one key. If it fails, each of them is tried alone, so that one that cannot be
            computed harms no other.
        batch_cost: greatest cost of jobs that are computed together, such as tokens.
        queue_cost: greatest cost of all that waits; beyond it `submit` refuses.
        observe: told after each batch: its jobs, their cost, the seconds, and the longest wait before.
    """

    def __init__(
        self,
        perform: Perform,
        *,
        batch_cost: int,
        queue_cost: int,
        observe: Callable[[int, int, float, float], None] = lambda jobs, cost, seconds, waited: None,
    ) -> None:
        self._perform, self._batch_cost, self._queue_cost, self._observe = perform, batch_cost, queue_cost, observe
        self._jobs: collections.deque[_Job] = collections.deque()
        self._streams: list[_Stream] = []
        self._changed = threading.Condition()
        self._waiting = 0  # cost of all that waits or is computed
        self._rate = 0.0  # cost a second, a moving mean
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        """Begins to compute."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The cost of all that waits or is being computed."""
        return self._waiting

    def submit(self, jobs: Sequence[tuple[Hashable, Any, int]]) -> list["Future[Any]"]:
        """Takes all of some jobs, or none: (key, payload, cost) each.

        A future that is cancelled before its job begins is not computed.

        Raises:
            OverloadedError: there is no room for all of them.
            DrainingError: `drain` was called.
        """
        cost = sum(max(1, one[2]) for one in jobs)
        with self._changed:
            self._admit(cost)
            made = [_Job(key, payload, max(1, price), Future()) for key, payload, price in jobs]
            self._jobs.extend(made)
            self._waiting += cost
            self._changed.notify()
        return [job.future for job in made]

    def stream(self, make: Callable[[], Iterator[Any]], tell: Callable[[Any], None], cost: int) -> Callable[[], None]:
        """Computes an iterator piece by piece, between batches; gives what stops it.

        Args:
            make: called in the computing thread; gives the iterator.
            tell: called in that thread with each piece, then with None; or with the exception that ended it.
            cost: what it counts in the queue.

        Raises:
            OverloadedError, DrainingError: as `submit`.
        """
        with self._changed:
            self._admit(cost)
            one = _Stream(make, tell, cost)
            self._streams.append(one)
            self._waiting += cost
            self._changed.notify()
        return one.stopped.set

    def drain(self, seconds: float) -> bool:
        """Takes nothing more, and waits for what it has taken; gives whether all was done in time."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(timeout=seconds)
        return not self._thread.is_alive()

    def _admit(self, cost: int) -> None:
        if self._ends:
            raise DrainingError
        # what alone is larger than the queue is taken when there is nothing else
        if self._waiting and self._waiting + cost > self._queue_cost:
            raise OverloadedError(max(1, math.ceil(self._waiting / self._rate)) if self._rate else 1)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._streams:
                    if self._ends:
                        return
                    self._changed.wait()
                batch = self._next()
            if batch:
                self._compute(batch)
            for one in list(self._streams):
                self._advance(one)

    def _next(self) -> list[_Job]:
        """The oldest job and those of its key that fit beside it; those that were cancelled are let go."""
        batch: list[_Job] = []
        left: collections.deque[_Job] = collections.deque()
        cost = 0
        while self._jobs:
            job = self._jobs.popleft()
            if batch and (job.key != batch[0].key or cost + job.cost > self._batch_cost):
                left.append(job)
            elif job.future.set_running_or_notify_cancel():
                batch.append(job)
                cost += job.cost
            else:
                self._waiting -= job.cost
        self._jobs = left
        return batch

    def _compute(self, batch: list[_Job]) -> None:
        start = time.monotonic()
        cost = sum(job.cost for job in batch)
        try:
            self._settle(batch)
        finally:
            seconds = time.monotonic() - start
            with self._changed:
                self._waiting -= cost
                now = cost / max(seconds, 1e-6)
                self._rate = now if not self._rate else 0.9 * self._rate + 0.1 * now
            self._observe(len(batch), cost, seconds, start - min(job.came for job in batch))

    def _settle(self, batch: list[_Job]) -> None:
        try:
            results = self._perform(batch[0].key, [job.payload for job in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for job in batch:
                self._settle([job])
            return
        for job, result in zip(batch, results, strict=True):
            job.future.set_result(result)

    def _advance(self, one: _Stream) -> None:
        """The next piece of a stream."""
        told: Any = None
        try:
            if not one.stopped.is_set():
                if one.pieces is None:
                    one.pieces = one.make()
                told = next(one.pieces, None)
        except Exception as error:
            told = error
        if told is None or isinstance(told, Exception):
            with self._changed:
                self._streams.remove(one)
                self._waiting -= one.cost
        one.tell(told)
