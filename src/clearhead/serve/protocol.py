"""uvicorn's HTTP protocol, which waits for a request's headers only so long."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """Closes a connection whose headers do not come; without it each would be held for ever."""

    header_seconds: float
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Waits on until a request has begun; the time for its body is the guard's."""
        if self._late is None:
            self._wait()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()

    def on_response_complete(self) -> None:
        """Between two requests uvicorn's own time for idle connections counts."""
        self._stop()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing more."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.header_seconds, self._close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


def patient(seconds: float) -> type[PatientProtocol]:
    """The protocol that waits so long for the headers of a request that has begun."""
    return type("Patient", (PatientProtocol,), {"header_seconds": seconds})
