"""Request bodies with per-request size and time limits and a memory budget that clients share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator

from starlette.types import Message, Receive

from clearhead.serve.http.client_limits import FairLimit

_DRAIN_BODIES = 4
"""After an early response, up to this many times the maximum body size is read and discarded."""
_DRAIN_SECONDS = 5.0


class RejectedRequestError(Exception):
    """A request that the middleware rejects before the application sees it.

    Args:
        status: HTTP status of the response.
        message: message for the client.
        code: error code for programs.
    """

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class ClientDisconnectedError(Exception):
    """The client disconnected before its body was complete."""


class BodyBudget:
    """Memory budget of all bodies that are being read or processed.

    Args:
        max_body_bytes: maximum size of one body.
        max_buffered_bytes: maximum total size of all bodies. Clients share it (`FairLimit`).
        seconds: time limit for a client to send one body.

    Raises:
        ValueError: the budget is less than twice the maximum body size. Such a body would never have room.
    """

    def __init__(self, *, max_body_bytes: int, max_buffered_bytes: int, seconds: float) -> None:
        if max_buffered_bytes < 2 * max_body_bytes:
            raise ValueError(
                f"max_buffered_bytes={max_buffered_bytes:,} is less than twice max_body_bytes={max_body_bytes:,}; "
                "increase max_buffered_bytes"
            )
        self.max_body_bytes, self.seconds = max_body_bytes, seconds
        self.limit = FairLimit(max_buffered_bytes)
        self.closed = False
        self._timeouts: set[asyncio.Timeout] = set()

    def close(self) -> None:
        """Stop waiting for incomplete bodies. Complete bodies are still accepted."""
        self.closed, now = True, asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(now)

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """Raise a TimeoutError in a block after some seconds, or when the server shuts down."""
        async with asyncio.timeout(0 if self.closed else seconds) as timeout:
            self._timeouts.add(timeout)
            try:
                yield
            finally:
                self._timeouts.remove(timeout)

    def check(self, length: int) -> None:
        """Raise a RejectedRequestError if a body exceeds the maximum size."""
        if length > self.max_body_bytes:
            message = f"the body is larger than {self.max_body_bytes:,} bytes"
            raise RejectedRequestError(413, message, "body_too_large")

    @contextlib.contextmanager
    def reader(self, headers: dict[bytes, bytes], receive: Receive) -> Iterator["BodyReader"]:
        """Open a reader of a request body. Its memory is released at the end of the block."""
        reader = BodyReader(self, headers, receive)
        try:
            yield reader
        finally:
            reader.release()


class BodyReader:
    """Reader of one request body.

    Args:
        budget: memory budget of all bodies.
        headers: headers of the request.
        receive: ASGI's receive, which returns the parts of the body.
    """

    def __init__(self, budget: BodyBudget, headers: dict[bytes, bytes], receive: Receive) -> None:
        self._budget, self._receive = budget, receive
        length = headers.get(b"content-length", b"0")
        self._length = int(length) if length.isdigit() else 0
        self._client: Hashable = None
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self.complete = not self._length and b"transfer-encoding" not in headers
        # a client that waits for "100 Continue" has not started to send
        self._can_drain = b"expect" not in headers

    async def read(self, client: Hashable) -> bytes:
        """Return the complete body.

        The application must not read it: it would report every error while reading as a malformed body.

        Args:
            client: the client whose share of the budget the body uses.

        Raises:
            RejectedRequestError: the body is too large or too slow, the budget is used up, or the server shuts down.
            ClientDisconnectedError: the client disconnected.
        """
        self._client = client
        self._budget.check(self._length)
        try:
            async with self._budget.timeout(self._budget.seconds):
                while not self.complete:
                    self._append(await self._next_part())
        except TimeoutError:
            if self._budget.closed:
                raise RejectedRequestError(503, "the server is shutting down", "draining") from None
            self._can_drain = False  # no more time for this client
            message = f"the body was not complete after {self._budget.seconds:g} s"
            raise RejectedRequestError(408, message, "body_too_slow") from None
        body, self._parts = b"".join(self._parts), []
        return body

    async def drain(self) -> None:
        """Read and discard the rest of the body within limits.

        A client that is still sending when the connection closes may never read its response.
        """
        self.release()
        remaining = _DRAIN_BODIES * self._budget.max_body_bytes
        with contextlib.suppress(TimeoutError, ClientDisconnectedError):
            async with self._budget.timeout(_DRAIN_SECONDS if self._can_drain else 0.0):
                while not self.complete and remaining > 0:
                    remaining -= len(await self._next_part())

    def release(self) -> None:
        """Release the memory of the body."""
        self._budget.limit.release(self._client, self._num_bytes)
        self._parts, self._num_bytes = [], 0

    def _append(self, part: bytes) -> None:
        self._budget.check(self._num_bytes + len(part))
        if not self._budget.limit.acquire(self._client, len(part)):
            message = "the memory for request bodies, or this client's share of it, is full; try again in 1 s"
            raise RejectedRequestError(503, message, "overloaded")
        self._num_bytes += len(part)
        self._parts.append(part)

    async def _next_part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        self.complete = not message.get("more_body", False)
        return bytes(message.get("body", b""))


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI receive that returns a complete body first, then the messages that follow it."""
    first = True

    async def receive_body() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return receive_body
