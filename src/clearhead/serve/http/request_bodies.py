"""Request bodies with per-request size and time limits and a memory budget that clients share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator

from starlette.types import Message, Receive

from clearhead.serve.http.client_limits import Shares

_DRAIN = 4
"""After an early answer, at most so many times the largest body is read and discarded."""
_DRAIN_SECONDS = 5.0


class RejectedRequestError(Exception):
    """A request that is answered before the application has it.

    Args:
        status, said, code: the answer's.
    """

    def __init__(self, status: int, said: str, code: str) -> None:
        super().__init__(said)
        self.status, self.said, self.code = status, said, code


class ClientDisconnectedError(Exception):
    """The client went away before its body was whole."""


class BodyBudget:
    """The bodies of all requests that are being read or answered.

    Args:
        largest: bytes of one.
        budget: bytes of all; of one client, as many as it leaves free (`Shares`).
        seconds: how long one may take to come.

    Raises:
        ValueError: the budget is less than twice the largest body, which would then never have room.
    """

    def __init__(self, *, largest: int, budget: int, seconds: float) -> None:
        if budget < 2 * largest:
            raise ValueError(
                f"held_bodies={budget:,} is less than twice largest_body={largest:,}; increase held_bodies"
            )
        self.largest, self.seconds = largest, seconds
        self.shares = Shares(budget)
        self.closed = False
        self._waits: set[asyncio.Timeout] = set()

    def close(self) -> None:
        """Waits for no body any more; those that are whole are still taken."""
        self.closed, now = True, asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now)

    @contextlib.asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Ends what is inside with a TimeoutError after some seconds, or when the server ends."""
        async with asyncio.timeout(0 if self.closed else seconds) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.remove(wait)

    def check(self, length: int) -> None:
        """Raises a RejectedRequestError for a body that is larger than one may be."""
        if length > self.largest:
            raise RejectedRequestError(413, f"the body is larger than {self.largest:,} bytes", "body_too_large")

    @contextlib.contextmanager
    def reading(self, headers: dict[bytes, bytes], receive: Receive) -> Iterator["BodyReader"]:
        """Room for a request's body, which is given back in the end."""
        one = BodyReader(self, headers, receive)
        try:
            yield one
        finally:
            one.drop()


class BodyReader:
    """The body of one request.

    Args:
        bodies: all of them.
        headers: the request's.
        receive: gives the parts of the body.
    """

    def __init__(self, bodies: BodyBudget, headers: dict[bytes, bytes], receive: Receive) -> None:
        self._bodies, self._receive = bodies, receive
        length = headers.get(b"content-length", b"0")
        self._length = int(length) if length.isdigit() else 0
        self._client: Hashable = None
        self._parts: list[bytes] = []
        self._held = 0
        self.whole = not self._length and b"transfer-encoding" not in headers
        # a client that waits to be told to go on has not begun to send
        self._drains = b"expect" not in headers

    async def read(self, client: Hashable) -> bytes:
        """Return the whole body.

        It is read before the application begins, which would take any error while it reads for a body that is broken.

        Args:
            client: whose share of the budget it uses.

        Raises:
            RejectedRequestError: it is too large, or too slow, there is no room for it, or the server ends.
            ClientDisconnectedError: the client went away.
        """
        self._client = client
        self._bodies.check(self._length)
        try:
            async with self._bodies.within(self._bodies.seconds):
                while not self.whole:
                    self._keep(await self._next())
        except TimeoutError:
            if self._bodies.closed:
                raise RejectedRequestError(503, "the server is about to end", "draining") from None
            self._drains = False  # its time is over
            said = f"the body did not come within {self._bodies.seconds:g} s"
            raise RejectedRequestError(408, said, "body_too_slow") from None
        body, self._parts = b"".join(self._parts), []
        return body

    async def drain(self) -> None:
        """Read the rest of the body within limits and discard it.

        A client that still sends when the connection is closed may never read its answer.
        """
        self.drop()
        left = _DRAIN * self._bodies.largest
        with contextlib.suppress(TimeoutError, ClientDisconnectedError):
            async with self._bodies.within(_DRAIN_SECONDS if self._drains else 0.0):
                while not self.whole and left > 0:
                    left -= len(await self._next())

    def drop(self) -> None:
        """Gives back what it holds of the budget."""
        self._bodies.shares.release(self._client, self._held)
        self._parts, self._held = [], 0

    def _keep(self, part: bytes) -> None:
        self._bodies.check(self._held + len(part))
        if not self._bodies.shares.take(self._client, len(part)):
            said = "the bodies of this client's other requests, and of other clients, fill the memory; try again in 1 s"
            raise RejectedRequestError(503, said, "overloaded")
        self._held += len(part)
        self._parts.append(part)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        self.whole = not message.get("more_body", False)
        return bytes(message.get("body", b""))


def replayed(body: bytes, receive: Receive) -> Receive:
    """First the body, then what else comes: that the client has gone."""
    first = True

    async def told() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return told
