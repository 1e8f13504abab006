"""Requests of many clients as batches: one thread computes, and what waits for it is bounded."""

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from clearhead.serve.http.client_limits import Shares
from clearhead.serve.http.errors import OverloadedError, RefusedError, RequestAbandonedError, ShuttingDownError

Perform = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""From a key and the payloads of its jobs to their results, in their order."""


@dataclass(eq=False)
class _Job:
    key: Hashable
    payload: Any
    cost: int
    place: "Reservation"
    turn: float  # jobs with a lower one come first
    future: "Future[Any]" = field(default_factory=Future)
    came: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Stream:
    """A result that comes in pieces; each is told as it is computed, then None, or the error."""

    make: Callable[[], Iterator[Any]]
    tell: Callable[[Any], None]
    place: "Reservation"
    pieces: Iterator[Any] | None = None


class Batcher:
    """Jobs of the same key are computed together, within a budget of their costs; and streams between the batches.

    Requests take turns, so that a large one does not hold up those that come after it. After a batch the streams have
    as much time as it took.

    Source: Goyal et al. 1996, "Start-time Fair Queueing"; a turn is a start time, a cost a length

    Args:
        perform: computes some jobs of one key. If it fails, each half of them is tried alone, so that one that cannot
            be computed harms no other. It calls `check` at each step.
        batch_cost: greatest cost of jobs that are computed together, such as tokens.
        queue_cost: greatest cost of all that waits or is computed; clients share it (`Shares`).
        observe: told after each batch: its jobs, and the longest wait before.
    """

    def __init__(
        self,
        perform: Perform,
        *,
        batch_cost: int,
        queue_cost: int,
        observe: Callable[[int, float], None] = lambda jobs, waited: None,
    ) -> None:
        self._perform, self._batch_cost, self._observe = perform, batch_cost, observe
        self._jobs: list[_Job] = []
        self._streams: list[_Stream] = []
        self._changed = threading.Condition()
        self._shares = Shares(queue_cost)  # costs of all places
        self._rate = 0.0  # cost a second, a moving mean
        self._turn = 0.0  # of the batch that was begun last
        self._places: list[Reservation] = []  # of what is being computed
        self._ends, self._deadline = False, math.inf  # until `close`
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        """Begins to compute."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs that computes."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """The cost of all that waits or is being computed."""
        return self._shares.held

    @property
    def seconds_left(self) -> float:
        """How long it still computes, after `close`; at least 0."""
        return max(0.0, self._deadline - time.monotonic())

    def place(self, cost: int, client: Hashable) -> "Reservation":
        """Reserve room for a request.

        Args:
            cost: an estimate; one beyond the whole queue is taken as the whole queue.
            client: whose share of the queue it uses.

        Raises:
            OverloadedError: there is no room.
            ShuttingDownError: `close` was called.
        """
        place = Reservation(self, client)
        self._change(place, min(max(1, cost), self._shares.limit))
        return place

    def check(self) -> None:
        """Raises where nobody waits any more for what is being computed, or the time is over.

        Raises:
            RequestAbandonedError, ShuttingDownError: so.
        """
        if time.monotonic() > self._deadline:
            raise ShuttingDownError
        if self._places and not any(place.wanted for place in self._places):
            raise RequestAbandonedError

    def close(self, seconds: float) -> None:
        """Takes nothing more, and gives up after some seconds what it has taken; a signal's handler may call it."""
        self._deadline, self._ends = time.monotonic() + seconds, True

    def drain(self, seconds: float) -> bool:
        """Takes nothing more, and waits for what it has taken; gives whether all was done in time."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(timeout=seconds)
        return not self._thread.is_alive()

    def _change(self, place: "Reservation", cost: int) -> None:
        """Changes what a place holds of the queue, if there is room."""
        limit = self._shares.limit
        if cost > limit:
            raise RefusedError(
                f"the request is {cost:,} tokens of work; this server takes {limit:,} at a time: send less"
            )
        with self._changed:
            if self._ends and not place.held:
                raise ShuttingDownError
            if not self._shares.take(place.client, cost, instead_of=place.held):
                raise OverloadedError(max(1, math.ceil(self.waiting / self._rate)) if self._rate else 1)
            place.held = cost

    def _release(self, place: "Reservation", cost: int) -> None:
        with self._changed:
            self._shares.release(place.client, cost)
            place.held -= cost
            self._changed.notify()

    def _enqueue(self, place: "Reservation", asked: Sequence[tuple[Hashable, Any, int]]) -> "list[_Job]":
        self._change(place, sum(max(1, one[2]) for one in asked))
        jobs, turn = list[_Job](), self._turn
        for key, payload, price in asked:
            jobs.append(_Job(key, payload, max(1, price), place, turn))
            turn += jobs[-1].cost
        with self._changed:
            self._jobs = sorted([*self._jobs, *jobs], key=lambda job: job.turn)
            self._changed.notify()
        return jobs

    def _begin(self, stream: _Stream) -> None:
        with self._changed:
            self._streams.append(stream)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._streams:
                    if self._ends and not self.waiting:
                        return
                    self._changed.wait()
                batch = self._next()
            start = time.monotonic()
            if batch:
                self._compute(batch)
            share = 2 * time.monotonic() - start
            while self._streams:
                for one in list(self._streams):
                    self._advance(one)
                if time.monotonic() >= share:
                    break

    def _next(self) -> list[_Job]:
        """The job whose turn it is and those of its key that fit beside it; those that were cancelled are let go."""
        batch: list[_Job] = []
        left: list[_Job] = []
        cost = 0
        for job in self._jobs:
            if batch and (job.key != batch[0].key or cost + job.cost > self._batch_cost):
                left.append(job)
            elif job.future.set_running_or_notify_cancel():
                batch.append(job)
                cost += job.cost
        self._jobs = left
        if batch:
            self._turn = batch[0].turn
        return batch

    def _compute(self, batch: list[_Job]) -> None:
        start = time.monotonic()
        cost = sum(job.cost for job in batch)
        try:
            self._settle(batch)
        finally:
            self._places = []
            now = cost / max(time.monotonic() - start, 1e-6)
            self._rate = now if not self._rate else 0.9 * self._rate + 0.1 * now
            for job in batch:
                self._release(job.place, job.cost)
            self._observe(len(batch), start - min(job.came for job in batch))

    def _settle(self, batch: list[_Job]) -> None:
        self._places = [job.place for job in batch]
        try:
            self.check()
            results = self._perform(batch[0].key, [job.payload for job in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(batch)} jobs gave {len(results)} results")
        except Exception as error:
            half = len(batch) // 2
            if not half or isinstance(error, RequestAbandonedError | ShuttingDownError):
                for job in batch:
                    job.future.set_exception(error)
                return
            self._settle(batch[:half])
            self._settle(batch[half:])
            return
        for job, result in zip(batch, results, strict=True):
            job.future.set_result(result)

    def _advance(self, one: _Stream) -> None:
        """The next piece of a stream."""
        told: Any = None
        self._places = [one.place]
        try:
            if one.place.wanted:
                if one.pieces is None:
                    one.pieces = one.make()
                told = next(one.pieces, None)
        except Exception as error:
            told = error
        self._places = []
        if told is None or isinstance(told, Exception):
            self._streams.remove(one)
            self._release(one.place, one.place.held)
        one.tell(told)


class Reservation:
    """What a request holds of the queue, from before its texts are counted until all is done, or nobody wants it.

    Args:
        batcher: the queue's.
        client: whose share of the queue it uses.

    Whoever has one leaves it in the end; `with` does.
    """

    def __init__(self, batcher: Batcher, client: Hashable) -> None:
        self._batcher, self.client = batcher, client
        self._jobs: list[_Job] = []
        self._begun = False
        self.held = 0
        self.wanted = True

    def submit(self, jobs: Sequence[tuple[Hashable, Any, int]]) -> list["Future[Any]"]:
        """Takes all of some jobs, or none: (key, payload, cost) each; the costs replace the estimate.

        Raises:
            OverloadedError, ShuttingDownError: as `Batcher.place`.
            RefusedError: they are more than the whole queue takes.
        """
        self._jobs = self._batcher._enqueue(self, jobs)
        self._begun = True
        return [job.future for job in self._jobs]

    def stream(self, make: Callable[[], Iterator[Any]], tell: Callable[[Any], None], cost: int) -> None:
        """Computes an iterator piece by piece, until the place is left.

        Args:
            make: called in the computing thread; gives the iterator.
            tell: called in that thread with each piece, then with None; or with the exception that ended it.
            cost: replaces the estimate.

        Raises:
            OverloadedError, ShuttingDownError, RefusedError: as `submit`.
        """
        self._batcher._change(self, max(1, cost))
        self._begun = True
        self._batcher._begin(_Stream(make, tell, self))

    def leave(self) -> None:
        """What has not begun is not computed; what is being computed ends at its next step, if nobody else wants it."""
        if not self.wanted:
            return
        self.wanted = False
        if not self._begun:
            self._batcher._release(self, self.held)
        for job in self._jobs:
            if job.future.cancel():
                self._batcher._release(self, job.cost)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
