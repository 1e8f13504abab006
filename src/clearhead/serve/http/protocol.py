"""uvicorn's HTTP protocol with limits on what clients can hold: connections, time, answers that they do not read."""

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from clearhead.serve.http.client_limits import Shares, network
from clearhead.serve.http.framing import StrictConnection
from clearhead.serve.metrics import Metrics

_SLICE = 4096
"""Bytes that are parsed at a time. Of what has come, h11 checks the size of a line only before its end has come."""
_RESET_SECONDS = 0.2
"""How often a half-closed connection is checked for a reset."""


class Connections:
    """What all connections have in common.

    Args:
        most: how many there may be at a time; of one address, as many as it leaves free (`Shares`).
        header_seconds: how long one may take to send the headers of a request.
        answer_seconds: how long one may take to take an answer.
        held_answers: bytes of all answers that wait to be taken; beyond it the one that waits longest is given up.
        metrics: where it is counted what was closed.
    """

    def __init__(
        self, most: int, *, header_seconds: float, answer_seconds: float, held_answers: int, metrics: Metrics
    ) -> None:
        self.shares, self.header_seconds, self.answer_seconds = Shares(most), header_seconds, answer_seconds
        self.held_answers, self.metrics = held_answers, metrics
        self._waiting: dict[BoundedHTTPProtocol, None] = {}  # in their order

    def wait(self, one: "BoundedHTTPProtocol") -> None:
        """An answer waits to be taken; one alone may, of whatever size."""
        self._waiting[one] = None
        while len(self._waiting) > 1 and self._held() > self.held_answers:
            next(iter(self._waiting)).give_up()

    def forget(self, one: "BoundedHTTPProtocol") -> None:
        """It waits no more."""
        self._waiting.pop(one, None)

    def _held(self) -> int:
        return sum(one.transport.get_write_buffer_size() for one in self._waiting)


class BoundedHTTPProtocol(H11Protocol):
    """Closes a connection that is one too many, whose headers do not come, or whose client takes no answer.

    Without it each would be held for ever.
    """

    shared: Connections
    conn: StrictConnection
    _late: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None
    _complete = False  # an answer of which not all is taken
    _counted = False
    _half_closed = False
    _reset_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self.conn = StrictConnection()
        self._counted = self.shared.shares.take(network(self.client), 1)
        if not self._counted:
            self.shared.metrics.connections.inc()
            transport.abort()
            return
        # a single byte that is not taken counts, or small answers could be held for ever
        transport.set_write_buffer_limits(high=0)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Waits on until a request has begun; the time for its body is the guard's."""
        if self._late is None and not self._complete:
            self._wait()
        for start in range(0, len(data), _SLICE):
            if not self.transport.is_closing():
                super().data_received(data[start : start + _SLICE])
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()

    def on_response_complete(self) -> None:
        """Between two requests uvicorn's own time for idle connections counts; the next one waits for this answer."""
        self._stop()
        self._complete = self._untaken is not None
        if not self._complete:
            super().on_response_complete()
            if self._half_closed and not self._owes:
                self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Still answer a client that has only finished sending.

        TCP reports a client that has closed its socket in the same way. But such a socket answers data with a reset.
        So the first bytes of the answer, which are always the same, are sent at once: a reset then abandons the
        request. If none comes, such as from a client behind a firewall that drops it, the request is computed in full.
        """
        self._half_closed = self._owes
        if self._half_closed and self._reset_check is None:
            self.transport.write(self.conn.start())
            self._check_reset()
        return self._half_closed

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request; what is malformed behind an answer that has begun closes the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self._close()

    def pause_writing(self) -> None:
        """The client does not take at once what is sent."""
        super().pause_writing()
        self._untaken = self.loop.call_later(self.shared.answer_seconds, self.give_up)
        self.shared.wait(self)

    def resume_writing(self) -> None:
        """It has taken all of it."""
        super().resume_writing()
        self._forget()
        if self._complete:  # soon: the transport that calls this must not be closed in it
            self.loop.call_soon(self.on_response_complete)

    def give_up(self) -> None:
        """Ends the connection, and lets go of what was to be sent."""
        self.shared.metrics.untaken.inc()
        self._forget()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing more."""
        self._stop()
        self._forget()
        if self._reset_check is not None:
            self._reset_check.cancel()
        if self._counted:
            self.shared.shares.release(network(self.client), 1)
        super().connection_lost(exc)

    @property
    def _owes(self) -> bool:
        """Whether a request has come whole and its answer is not complete."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _check_reset(self) -> None:
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self._reset_check = self.loop.call_later(_RESET_SECONDS, self._check_reset)

    def _should_upgrade(self) -> bool:
        """Ignore Upgrade headers: there are no WebSockets, whose connections would have no limits."""
        return False

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.shared.header_seconds, self._close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _forget(self) -> None:
        self.shared.forget(self)
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def _close(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


def patient(shared: Connections) -> type[BoundedHTTPProtocol]:
    """The protocol of connections that have this in common."""
    return type("Patient", (BoundedHTTPProtocol,), {"shared": shared})
