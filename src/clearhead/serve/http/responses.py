"""A request waits for what the other thread computes, as long as its client is there."""

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
from clearhead.serve.http.errors import RequestAbandonedError, ShuttingDownError, error_body, non_finite_body

log = logging.getLogger("clearhead.serve")


async def results(request: Request, place: Reservation, jobs: Sequence[tuple[Hashable, Any, int]]) -> list[Any]:
    """The results of all jobs.

    Raises:
        RequestAbandonedError: the client has gone away.
        Exception: what one of them raised.
    """
    futures, finished = place.submit(jobs), asyncio.Event()
    loop, left = asyncio.get_running_loop(), len(futures)

    failed: list[BaseException] = []

    def count(error: BaseException | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            failed.append(error)
        if not left or failed:  # the others are not waited for, and when their place is left not computed
            finished.set()

    for one in futures:
        one.add_done_callback(
            lambda one: loop.call_soon_threadsafe(count, None if one.cancelled() else one.exception())
        )
    # not by asyncio's futures: it writes the errors of those that nobody awaits any more into the log
    waits: set[asyncio.Task[bool]] = {asyncio.create_task(finished.wait()), asyncio.create_task(_gone(request))}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if not finished.is_set():
        raise RequestAbandonedError
    if failed:
        raise failed[0]
    return [one.result() for one in futures]


async def _gone(request: Request) -> bool:
    """Waits until the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return True


class EventStream(StreamingResponse):
    """Pieces of a result as server-sent events, as they are computed; the last is [DONE].

    Args:
        request: the request.
        place: what it holds of the queue; it is left in the end, whether the client stays or goes.
        make: gives the pieces, in the computing thread.
        cost: of all of it.
        told: what is told of a piece.

    Raises:
        OverloadedError, ShuttingDownError, RefusedError: as `Place.stream`.
    """

    def __init__(
        self,
        request: Request,
        place: Reservation,
        make: Callable[[], Iterator[Any]],
        cost: int,
        told: Callable[[Any], dict[str, Any]],
    ) -> None:
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def tell(piece: Any) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        place.stream(make, tell, cost)
        self._place, self._told, self._id, self._pieces = place, told, request.scope.get("request_id"), pieces
        super().__init__(self._events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._place.leave()

    async def stream_response(self, send: Send) -> None:
        """Send nothing before the first event: until then the protocol can test whether the client is still there."""
        self.body_iterator = self._events(await self._pieces.get())
        await super().stream_response(send)

    async def _events(self, piece: Any = None) -> AsyncIterator[str]:
        while piece is not None:
            if isinstance(piece, Exception):
                yield f"event: error\ndata: {json.dumps(self._wrong(piece), allow_nan=False)}\n\n"
                return
            yield f"data: {json.dumps(self._told(piece), allow_nan=False)}\n\n"
            piece = await self._pieces.get()
        yield "data: [DONE]\n\n"

    def _wrong(self, error: Exception) -> dict[str, Any]:
        if isinstance(error, ShuttingDownError):
            return error_body("the server is about to end", "draining", kind="server_error")
        if isinstance(error, NonFiniteError):
            return non_finite_body(error)
        log.error("request %s: a stream failed: %s", self._id, type(error).__name__)
        return error_body(f"something went wrong here; request {self._id}", "internal_error", kind="server_error")
