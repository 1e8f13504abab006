"""Requests' bodies: each within its size and its time, and all together within a budget."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from starlette.types import Message, Receive

_DRAIN = 4
"""What is too large is read on to so many times the limit, and thrown away."""
_DRAIN_SECONDS = 5.0


class TurnedAwayError(Exception):
    """A request that is answered before the application has it.

    Args:
        status, said, code: the answer's.
    """

    def __init__(self, status: int, said: str, code: str) -> None:
        super().__init__(said)
        self.status, self.said, self.code = status, said, code


class ClientGoneError(Exception):
    """The client went away before its body was whole."""


class Bodies:
    """The bodies of all requests that are being read or answered.

    Args:
        largest: bytes of one.
        budget: bytes of all.
        seconds: how long one may take to come.
    """

    def __init__(self, *, largest: int, budget: int, seconds: float) -> None:
        self.largest, self.budget, self.seconds = largest, budget, seconds
        self.held = 0
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

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Ends what is inside with a TurnedAwayError when a body's time is over, or the server's."""
        try:
            async with self.within(self.seconds):
                yield
        except TimeoutError:
            if self.closed:
                raise TurnedAwayError(503, "the server is about to end", "draining") from None
            raise TurnedAwayError(408, f"the body did not come within {self.seconds:g} s", "body_too_slow") from None

    def check(self, length: int) -> None:
        """Raises a TurnedAwayError for a body that is larger than one may be."""
        if length > self.largest:
            raise TurnedAwayError(413, f"the body is larger than {self.largest:,} bytes", "body_too_large")

    @contextlib.contextmanager
    def reading(self) -> Iterator["Reading"]:
        """Room for a body, which is given back in the end."""
        one = Reading(self)
        try:
            yield one
        finally:
            one.drop()


class Reading:
    """One body.

    Args:
        bodies: all of them.
    """

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._parts: list[bytes] = []
        self._held = 0
        self.whole = False

    async def read(self, receive: Receive) -> bytes:
        """The whole of it.

        It is read before the application begins, which would take any error while it reads for a body that is broken.

        Raises:
            TurnedAwayError: it is too large, or too slow, there is no room for it, or the server ends.
            ClientGoneError: so.
        """
        async with self._bodies.in_time():
            while not self.whole:
                part = await self._next(receive)
                self._held += len(part)
                self._bodies.held += len(part)
                self._bodies.check(self._held)
                if self._bodies.held > self._bodies.budget:
                    said = "the bodies of other requests fill the memory that there is for them; try again in 1 s"
                    raise TurnedAwayError(503, said, "overloaded")
                self._parts.append(part)
        body, self._parts = b"".join(self._parts), []
        return body

    async def drain(self, receive: Receive) -> None:
        """Reads on, to some bound, and keeps nothing: a client that still sends when it is closed hears no answer."""
        self.drop()
        left = _DRAIN * self._bodies.largest
        with contextlib.suppress(TimeoutError, ClientGoneError):
            async with self._bodies.within(_DRAIN_SECONDS):
                while not self.whole and left > 0:
                    left -= len(await self._next(receive))

    def drop(self) -> None:
        """Gives back what it holds of the budget."""
        self._bodies.held -= self._held
        self._parts, self._held = [], 0

    async def _next(self, receive: Receive) -> bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
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
