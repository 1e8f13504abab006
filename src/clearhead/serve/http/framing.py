"""h11 connection that rejects requests that are ambiguous or costly to parse."""

import re
from typing import Any

import h11

MAX_HEADER_BYTES = 32 * 1024
"""Maximum size of the request line and headers."""
_MAX_HEADERS = 100
"""Maximum number of headers. Each header is costly to parse."""
_MAX_LINE_BYTES = 1024
"""Maximum size of an incomplete line before a chunk, or of incomplete trailers."""
_SMALL_CHUNK = 64
_SMALL_CHUNKS = 1000
"""Maximum number of chunks whose average size is below `_SMALL_CHUNK`. Each chunk is costly to parse."""

_START = b"HTTP/1.1 "
"""First bytes of every response, for any status."""
_BLANK_LINE = re.compile(rb"\n\r?\n")
_COSTLY = re.compile(rb"[ \t]{100}|\n[ \t]")
"""Long runs of blanks, also across continuation lines: h11's regular expressions take quadratic time for them."""


class StrictConnection(h11.Connection):
    """Server side of an HTTP/1.1 connection.

    h11 accepts Content-Length next to Transfer-Encoding and ignores the length. A proxy that ignores the coding instead
    takes the body for the next request: request smuggling. RFC 9112 lets a server reject such requests (section 6.1),
    and continuation lines of headers (section 5.2).
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEADER_BYTES)
        self._already_sent = self._num_chunks = self._chunk_bytes = 0

    def next_event(self) -> Any:
        """Return the next part of a request.

        Raises:
            h11.RemoteProtocolError: the request is malformed, ambiguous, of another version, or costly to parse.
        """
        if self.their_state is h11.IDLE:
            self._check_header_bytes(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check_framing(event)
            self._num_chunks = self._chunk_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_chunks += event.chunk_start
            self._chunk_bytes += len(event.data)
            if self._num_chunks > _SMALL_CHUNKS and self._chunk_bytes < _SMALL_CHUNK * self._num_chunks:
                raise h11.RemoteProtocolError("the chunks are too small")
        elif event is h11.NEED_DATA and self._incomplete_line_bytes() > _MAX_LINE_BYTES:
            raise h11.RemoteProtocolError("the extensions or trailers of the chunks are too large")
        return event

    def start(self) -> bytes:
        """Return the first bytes of the pending response; `send` then omits them."""
        if self.our_state is not h11.SEND_RESPONSE or self._already_sent:
            return b""
        self._already_sent = len(_START)
        return _START

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """Return the bytes of a part of a response."""
        parts = super().send_with_data_passthrough(event)
        if parts and self._already_sent:
            parts, self._already_sent = [b"".join(parts)[self._already_sent :]], 0
        return parts

    def _incomplete_line_bytes(self) -> int:
        """Return the size of an incomplete line before a chunk, or of incomplete trailers."""
        return len(self.trailing_data[0]) if self.their_state is h11.SEND_BODY else 0

    def _check_header_bytes(self, data: bytes) -> None:
        """Check the size, the number and the blanks of the headers before h11 parses them."""
        end = _BLANK_LINE.search(data)
        headers = data[: end.start()] if end else data
        if len(headers) > MAX_HEADER_BYTES:
            raise h11.RemoteProtocolError("the headers are too large", 431)
        if headers.count(b"\n") > _MAX_HEADERS:
            raise h11.RemoteProtocolError("there are too many headers", 431)
        if _COSTLY.search(headers):
            raise h11.RemoteProtocolError("continuation lines and long runs of blanks are not supported")

    def _check_framing(self, request: h11.Request) -> None:
        """Check that the length of the body is unambiguous."""
        names = [name for name, _ in request.headers]
        if request.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("unsupported version", 505)
        if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
            raise h11.RemoteProtocolError("ambiguous length of the body")
