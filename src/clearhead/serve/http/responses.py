"""Wait for the results of a request, or stream them, while the client stays connected."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from clearhead.finite import NonFiniteError
from clearhead.serve.batching import Reservation
from clearhead.serve.http.errors import (
    RequestAbandonedError,
    ShuttingDownError,
    error_body,
    non_finite_body,
    shutting_down_body,
)

log = logging.getLogger("clearhead.serve")


async def wait_for_results(
    request: Request, reservation: Reservation, jobs: Sequence[tuple[Hashable, Any, int]]
) -> list[Any]:
    """Submit jobs and return their results in order.

    Args:
        request: the request.
        reservation: its reservation.
        jobs: (key, payload, cost) of each job.

    Raises:
        RequestAbandonedError: the client disconnected.
        Exception: the error of the first job that failed.
    """
    futures, finished = reservation.submit(jobs), asyncio.Event()
    loop, remaining = asyncio.get_running_loop(), len(futures)

    errors: list[BaseException] = []

    def count(error: BaseException | None) -> None:
        nonlocal remaining
        remaining -= 1
        if error is not None:
            errors.append(error)
        if not remaining or errors:  # after an error the caller releases the reservation, which cancels the other jobs
            finished.set()

    for future in futures:
        future.add_done_callback(
            lambda done: loop.call_soon_threadsafe(count, None if done.cancelled() else done.exception())
        )
    # asyncio's own futures would log every error that no task awaits
    tasks: set[asyncio.Task[bool]] = {
        asyncio.create_task(finished.wait()),
        asyncio.create_task(_wait_for_disconnect(request)),
    }
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    if not finished.is_set():
        raise RequestAbandonedError
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


async def _wait_for_disconnect(request: Request) -> bool:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return True


class EventStream(StreamingResponse):
    """Response with server-sent events, each sent as soon as it is computed. The last event is [DONE].

    Args:
        request: the request.
        reservation: its reservation, which is released at the end of the response.
        create: returns the iterator over the data of the events; called in the compute thread.
        cost: total cost of the stream.

    Raises:
        OverloadedError, ShuttingDownError, InvalidRequestError: as `Reservation.stream`.
    """

    def __init__(
        self,
        request: Request,
        reservation: Reservation,
        create: Callable[[], Iterator[dict[str, Any]]],
        cost: int,
    ) -> None:
        loop, items = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def send_item(item: Any) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        reservation.stream(create, send_item, cost)
        self._reservation, self._request_id, self._items = reservation, request.scope.get("request_id"), items
        super().__init__(self._events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reservation.release()

    async def stream_response(self, send: Send) -> None:
        """Send nothing before the first event: until then the protocol can test whether the client is still there."""
        self.body_iterator = self._events(await self._items.get())
        await super().stream_response(send)

    async def _events(self, item: Any = None) -> AsyncIterator[str]:
        while item is not None:
            if isinstance(item, Exception):
                yield f"event: error\ndata: {json.dumps(self._error_body(item), allow_nan=False)}\n\n"
                return
            yield f"data: {json.dumps(item, allow_nan=False)}\n\n"
            item = await self._items.get()
        yield "data: [DONE]\n\n"

    def _error_body(self, error: Exception) -> dict[str, Any]:
        if isinstance(error, ShuttingDownError):
            return shutting_down_body()
        if isinstance(error, NonFiniteError):
            return non_finite_body(error)
        log.error("request %s: a stream failed: %s", self._request_id, type(error).__name__)
        return error_body(f"internal error; request {self._request_id}", "internal_error", kind="server_error")
