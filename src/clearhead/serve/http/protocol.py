"""uvicorn's HTTP protocol with limits on connections, slow headers and unread responses."""

import asyncio
import contextlib
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from clearhead.serve.http.client_limits import FairLimit, client_network
from clearhead.serve.http.framing import StrictConnection
from clearhead.serve.metrics import Metrics

_SLICE = 4096
"""Bytes that h11 parses at a time. It checks the size of a line only while the line is incomplete.

asyncio also reads no more at a time, so that the chunks of one body do not delay all other connections.
"""
_RESET_SECONDS = 0.2
"""Interval at which a half-closed connection is checked for a reset."""


class ConnectionLimits:
    """Limits that all connections share.

    Args:
        max_connections: maximum number of connections. Addresses share it (`FairLimit`).
        header_seconds: time limit for a client to send the headers of a request.
        response_seconds: time limit for a client to read a response.
        max_unread_bytes: maximum total size of unread responses. Beyond it the oldest one is aborted.
        metrics: counts the connections that are closed.
    """

    def __init__(
        self,
        max_connections: int,
        *,
        header_seconds: float,
        response_seconds: float,
        max_unread_bytes: int,
        metrics: Metrics,
    ) -> None:
        self.limit = FairLimit(max_connections)
        self.header_seconds, self.response_seconds = header_seconds, response_seconds
        self.max_unread_bytes, self.metrics = max_unread_bytes, metrics
        self._unread: dict[BoundedHTTPProtocol, None] = {}  # oldest first

    def add_unread(self, connection: "BoundedHTTPProtocol") -> None:
        """Add an unread response, and abort the oldest ones beyond the limit. A single one may have any size."""
        self._unread[connection] = None
        while len(self._unread) > 1 and self._unread_bytes() > self.max_unread_bytes:
            next(iter(self._unread)).abort_response()

    def remove_unread(self, connection: "BoundedHTTPProtocol") -> None:
        """Remove a response that was read or aborted."""
        self._unread.pop(connection, None)

    def _unread_bytes(self) -> int:
        return sum(connection.transport.get_write_buffer_size() for connection in self._unread)


class BoundedHTTPProtocol(H11Protocol):
    """Close connections beyond the limit, and those whose client is too slow to send headers or to read a response."""

    shared: ConnectionLimits
    conn: StrictConnection
    _header_timer: asyncio.TimerHandle | None = None
    _response_timer: asyncio.TimerHandle | None = None
    _awaits_read = False  # the response is complete, but the client has not read all of it
    _counted = False
    _half_closed = False
    _reset_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept a connection within the limit and wait for its first request."""
        super().connection_made(transport)
        self.conn = StrictConnection()
        self._counted = self.shared.limit.acquire(client_network(self.client), 1)
        if not self._counted:
            self.shared.metrics.refused_connections.inc()
            transport.abort()
            return
        # `pause_writing` must report every unread byte: small responses could otherwise be held forever
        transport.set_write_buffer_limits(high=0)
        with contextlib.suppress(AttributeError):  # another event loop than asyncio's
            transport.max_size = _SLICE
        self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data. The time limit of the headers ends when a request starts; the middleware limits its body."""
        if self._header_timer is None and not self._awaits_read:
            self._start_header_timer()
        for start in range(0, len(data), _SLICE):
            if not self.transport.is_closing():
                super().data_received(data[start : start + _SLICE])
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_header_timer()

    def on_response_complete(self) -> None:
        """Wait for the client to read the response before the next request. uvicorn limits the idle time after it."""
        self._stop_header_timer()
        self._awaits_read = self._response_timer is not None
        if not self._awaits_read:
            super().on_response_complete()
            if self._half_closed and not self._response_pending:
                self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Respond to a client that has only finished sending.

        TCP reports a client that has closed its socket in the same way. But such a socket answers data with a reset.
        The first bytes of every response are the same, so they are sent at once. A reset then abandons the request. If
        none arrives, for example because a firewall drops it, the request is computed in full.
        """
        self._half_closed = self._response_pending
        if self._half_closed and self._reset_check is None:
            self.transport.write(self.conn.start())
            self._check_reset()
        return self._half_closed

    def send_400_response(self, msg: str) -> None:
        """Respond to a malformed request, or close the connection if another response has started."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self._close()

    def pause_writing(self) -> None:
        """Start the time limit of a response that the client does not read at once."""
        super().pause_writing()
        self._response_timer = self.loop.call_later(self.shared.response_seconds, self.abort_response)
        self.shared.add_unread(self)

    def resume_writing(self) -> None:
        """End the time limit of a response that the client has read."""
        super().resume_writing()
        self._stop_response_timer()
        if self._awaits_read:  # later: the transport that calls this method must not be closed in it
            self.loop.call_soon(self.on_response_complete)

    def abort_response(self) -> None:
        """Abort the connection and discard the unread response."""
        self.shared.metrics.unread_responses.inc()
        self._stop_response_timer()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers and release the connection."""
        self._stop_header_timer()
        self._stop_response_timer()
        if self._reset_check is not None:
            self._reset_check.cancel()
        if self._counted:
            self.shared.limit.release(client_network(self.client), 1)
        super().connection_lost(exc)

    @property
    def _response_pending(self) -> bool:
        """Whether a request is complete and its response is not."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _check_reset(self) -> None:
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self._reset_check = self.loop.call_later(_RESET_SECONDS, self._check_reset)

    def _should_upgrade(self) -> bool:
        """Ignore Upgrade headers: there are no WebSockets, whose connections would have no limits."""
        return False

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.shared.header_seconds, self._close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_response_timer(self) -> None:
        self.shared.remove_unread(self)
        if self._response_timer is not None:
            self._response_timer.cancel()
            self._response_timer = None

    def _close(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


def protocol_with_limits(shared: ConnectionLimits) -> type[BoundedHTTPProtocol]:
    """Return a protocol class whose connections share limits; uvicorn creates its instances."""
    return type("BoundedHTTPProtocol", (BoundedHTTPProtocol,), {"shared": shared})
