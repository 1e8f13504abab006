"""Compute the requests of many clients in batches, in one thread with a bounded queue."""

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from clearhead.serve.http.client_limits import FairLimit, FairQueue, Waiting
from clearhead.serve.http.errors import (
    InvalidRequestError,
    OverloadedError,
    RequestAbandonedError,
    ShuttingDownError,
)

_BATCH_SECONDS, _MIN_BATCH_COST = 0.5, 1024
"""A batch has no more cost than is computed in this time, so that new requests soon get their turn; but at least the
minimum, which small models need to be efficient."""
_DECAY = 0.9
"""Weight of the earlier batches in the measured speed, for each new one."""

RunBatch = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""Computes the payloads of jobs with the same key and returns their results in order."""


@dataclass(eq=False)
class _Job:
    key: Hashable
    payload: Any
    cost: int
    reservation: "Reservation"
    future: "Future[Any]" = field(default_factory=Future)
    submitted_at: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Stream:
    create: Callable[[], Iterator[Any]]
    send: Callable[[Any], None]
    reservation: "Reservation"
    items: Iterator[Any] | None = None


class Batcher:
    """Compute jobs with the same key in batches of limited cost, and streams between the batches.

    Fair queueing orders the jobs (`FairQueue`): a client does not delay the others, however much it sends, and a large
    request does not delay the requests that arrive after it. The measured speed limits the time of a batch. After each
    batch the streams get as much time as the batch took. Each client advances one stream at a time.

    Args:
        run_batch: computes the jobs of one batch. If it fails, each half of the batch is tried separately, so that one
            invalid job does not fail the others. It calls `check_cancelled` before each forward pass.
        max_batch_cost: maximum total cost of a batch, such as tokens.
        max_queue_cost: maximum total cost of all jobs that wait or run. Clients share it (`FairLimit`).
        on_batch: called after each batch with its number of jobs and their longest queue time in seconds.
    """

    def __init__(
        self,
        run_batch: RunBatch,
        *,
        max_batch_cost: int,
        max_queue_cost: int,
        on_batch: Callable[[int, float], None] = lambda jobs, queue_seconds: None,
    ) -> None:
        self._run_batch, self._max_batch_cost, self._on_batch = run_batch, max_batch_cost, on_batch
        self._jobs = FairQueue[_Job]()
        self._streams: list[_Stream] = []
        self._changed = threading.Condition()
        self._limit = FairLimit(max_queue_cost)
        self._recent_cost, self._recent_seconds = 0.0, 0.0  # weighted sums over the batches
        self._running: list[Reservation] = []
        self._closed, self._deadline = False, math.inf
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        """Start the compute thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the compute thread is running."""
        return self._thread.is_alive()

    @property
    def pending_cost(self) -> int:
        """Total cost of all jobs that wait or run."""
        return self._limit.used

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline that `close` sets, at least 0."""
        return max(0.0, self._deadline - time.monotonic())

    def reserve(self, cost: int, client: Hashable) -> "Reservation":
        """Reserve room in the queue for a request.

        Args:
            cost: an estimate of its cost, capped at the size of the queue.
            client: the client whose share of the queue the request uses.

        Raises:
            OverloadedError: the queue has no room.
            ShuttingDownError: `close` was called.
        """
        reservation = Reservation(self, client)
        self.resize(reservation, min(max(1, cost), self._limit.limit))
        return reservation

    def resize(self, reservation: "Reservation", cost: int) -> None:
        """Replace the cost of a reservation.

        Raises:
            InvalidRequestError: the cost exceeds the size of the queue.
            OverloadedError, ShuttingDownError: as `reserve`.
        """
        limit = self._limit.limit
        if cost > limit:
            raise InvalidRequestError(
                f"the request is {cost:,} tokens of work; this server takes {limit:,} at a time: send less"
            )
        with self._changed:
            if self._closed and not reservation.cost:
                raise ShuttingDownError
            if not self._limit.acquire(reservation.client, cost, replaces=reservation.cost):
                seconds = self.pending_cost * self._recent_seconds / max(self._recent_cost, 1.0)
                raise OverloadedError(max(1, math.ceil(seconds)))
            reservation.cost = cost

    def reduce(self, reservation: "Reservation", cost: int) -> None:
        """Release a part of the cost of a reservation."""
        with self._changed:
            self._limit.release(reservation.client, cost)
            reservation.cost -= cost
            self._changed.notify()

    def submit(
        self, reservation: "Reservation", jobs: Sequence[tuple[Hashable, Any, int]]
    ) -> "list[tuple[int, Future[Any]]]":
        """Queue jobs (key, payload, cost), whose total cost replaces that of the reservation.

        Returns:
            The cost and the future of each job.
        """
        self.resize(reservation, sum(max(1, cost) for _, _, cost in jobs))
        queued = [_Job(key, payload, max(1, cost), reservation) for key, payload, cost in jobs]
        with self._changed:
            self._jobs.add(reservation.client, [(job, job.cost) for job in queued])
            self._changed.notify()
        return [(job.cost, job.future) for job in queued]

    def submit_stream(
        self, reservation: "Reservation", create: Callable[[], Iterator[Any]], send: Callable[[Any], None], cost: int
    ) -> None:
        """Queue a stream, whose cost replaces that of the reservation."""
        self.resize(reservation, max(1, cost))
        with self._changed:
            self._streams.append(_Stream(create, send, reservation))
            self._changed.notify()

    def check_cancelled(self) -> None:
        """Raise an error if the result of the current batch is no longer needed.

        Raises:
            RequestAbandonedError: all of its reservations were released.
            ShuttingDownError: the deadline is over.
        """
        if time.monotonic() > self._deadline:
            raise ShuttingDownError
        if self._running and not any(reservation.active for reservation in self._running):
            raise RequestAbandonedError

    def close(self, seconds: float) -> None:
        """Accept no more requests and cancel the rest after some seconds. Safe to call from a signal handler."""
        self._deadline, self._closed = time.monotonic() + seconds, True

    def drain(self, seconds: float) -> bool:
        """Accept no more requests, wait for the accepted ones, and return whether all finished in time."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._streams:
                    if self._closed and not self.pending_cost:
                        return
                    self._changed.wait()
                batch = self._next_batch()
            start = time.monotonic()
            if batch:
                self._compute(batch)
            stop = 2 * time.monotonic() - start
            while self._streams:
                self._advance_streams()
                if time.monotonic() >= stop:
                    break

    def _next_batch(self) -> list[_Job]:
        """Remove the first job and the next jobs with its key that fit into the batch; cancelled jobs are dropped."""
        batch: list[Waiting[_Job]] = []
        cancelled: list[Waiting[_Job]] = []
        cost, limit = 0, self._max_batch_cost
        if self._recent_seconds:
            affordable = _BATCH_SECONDS * self._recent_cost / self._recent_seconds
            limit = min(limit, max(_MIN_BATCH_COST, int(affordable)))
        for waiting in self._jobs.in_order():
            if batch and waiting.item.key != batch[0].item.key:
                continue
            if batch and cost + waiting.cost > limit:
                break
            if waiting.item.future.set_running_or_notify_cancel():
                batch.append(waiting)
                cost += waiting.cost
            else:
                cancelled.append(waiting)
        self._jobs.remove(batch, cancelled)
        return [waiting.item for waiting in batch]

    def _compute(self, batch: list[_Job]) -> None:
        start = time.monotonic()
        cost = sum(job.cost for job in batch)
        try:
            self._set_results(batch)
        finally:
            self._running = []
            self._recent_cost = _DECAY * self._recent_cost + cost
            self._recent_seconds = _DECAY * self._recent_seconds + time.monotonic() - start
            for job in batch:
                self.reduce(job.reservation, job.cost)
            self._on_batch(len(batch), start - min(job.submitted_at for job in batch))

    def _set_results(self, batch: list[_Job]) -> None:
        self._running = [job.reservation for job in batch]
        try:
            self.check_cancelled()
            results = self._run_batch(batch[0].key, [job.payload for job in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(batch)} jobs gave {len(results)} results")
        except Exception as error:
            half = len(batch) // 2
            if not half or isinstance(error, RequestAbandonedError | ShuttingDownError):
                for job in batch:
                    job.future.set_exception(error)
                return
            self._set_results(batch[:half])
            self._set_results(batch[half:])
            return
        for job, result in zip(batch, results, strict=True):
            job.future.set_result(result)

    def _advance_streams(self) -> None:
        """Advance the stream of each client that has waited longest."""
        first: dict[Hashable, _Stream] = {}
        for stream in list(self._streams):
            first.setdefault(stream.reservation.client, stream)
        for stream in first.values():
            self._streams.remove(stream)
            if self._advance(stream):
                self._streams.append(stream)

    def _advance(self, stream: _Stream) -> bool:
        """Compute and send the next item of a stream, and return whether there may be more; None ends it."""
        item: Any = None
        self._running = [stream.reservation]
        try:
            if stream.reservation.active:
                if stream.items is None:
                    stream.items = stream.create()
                item = next(stream.items, None)
        except Exception as error:
            item = error
        self._running = []
        is_last = item is None or isinstance(item, Exception)
        if is_last:
            self.reduce(stream.reservation, stream.reservation.cost)
        stream.send(item)
        return not is_last


class Reservation:
    """Room of one request in the queue, from before its texts are tokenized until it is computed or cancelled.

    Use it in a `with` statement, or call `release` at the end.

    Args:
        batcher: the batcher.
        client: the client whose share of the queue the request uses.
    """

    def __init__(self, batcher: Batcher, client: Hashable) -> None:
        self._batcher, self.client = batcher, client
        self._jobs: list[tuple[int, Future[Any]]] = []
        self._submitted = False
        self.cost = 0
        self.active = True

    def submit(self, jobs: Sequence[tuple[Hashable, Any, int]]) -> list["Future[Any]"]:
        """Queue all of the jobs or none, and return their futures.

        Args:
            jobs: (key, payload, cost) of each job. The total cost replaces the estimate.

        Raises:
            OverloadedError, ShuttingDownError: as `Batcher.reserve`.
            InvalidRequestError: the total cost exceeds the size of the queue.
        """
        self._jobs = self._batcher.submit(self, jobs)
        self._submitted = True
        return [future for _, future in self._jobs]

    def stream(self, create: Callable[[], Iterator[Any]], send: Callable[[Any], None], cost: int) -> None:
        """Compute an iterator item by item until the reservation is released.

        Args:
            create: returns the iterator; called in the compute thread.
            send: called in that thread with each item, then with None or with the exception that ended the iterator.
            cost: replaces the estimate.

        Raises:
            OverloadedError, ShuttingDownError, InvalidRequestError: as `submit`.
        """
        self._batcher.submit_stream(self, create, send, cost)
        self._submitted = True

    def release(self) -> None:
        """Cancel the jobs that wait. A running batch ends at its next forward pass if no other request needs it."""
        if not self.active:
            return
        self.active = False
        if not self._submitted:
            self._batcher.reduce(self, self.cost)
        for cost, future in self._jobs:
            if future.cancel():
                self._batcher.reduce(self, cost)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
