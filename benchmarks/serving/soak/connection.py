"""HTTP/1.1 client connections that can also misbehave: read slowly, send half a request or close early."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass

READ_BYTES = 2**16


class ClosedError(Exception):
    """The server refused or closed the connection before the response was complete."""


@dataclass(frozen=True)
class Head:
    """Status and headers of a response, with names in lower case."""

    status: int
    headers: dict[str, str]

    @property
    def closes(self) -> bool:
        """Whether the server closes the connection after the response."""
        return self.headers.get("connection", "").lower() == "close"


def encode_request(path, body=None, *, key=None, headers=()):
    """Return the bytes of a request.

    Args:
        path: its path.
        body: JSON value or bytes to post; None for a GET request.
        key: API key; None for none.
        headers: additional lines.
    """
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: soak", *headers]
    lines += [f"authorization: Bearer {key}"] if key else []
    if body is not None and not any(line.startswith("content-length") for line in headers):
        lines += ["content-type: application/json", f"content-length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


class Connection:
    """A connection to the server; use it in an `async with` statement.

    Args:
        address: host and port of the server.
        source: local address, which identifies the client in the limits of connections.
        receive_buffer: size of the socket's buffer, for slow readers; None for the system's default.
    """

    def __init__(self, address, source, receive_buffer=None):
        self._address, self._source, self._receive_buffer = address, source, receive_buffer

    async def __aenter__(self):
        one = socket.socket()
        one.setblocking(False)
        one.bind((self._source, 0))
        if self._receive_buffer:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(one, self._address)
            limit = self._receive_buffer or READ_BYTES
            self._reader, self._writer = await asyncio.open_connection(sock=one, limit=limit)
        except OSError as error:
            one.close()
            raise ClosedError(str(error)) from error
        return self

    async def __aexit__(self, *_):
        self._writer.close()

    async def send(self, data):
        """Send bytes and wait until the system has taken them."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise ClosedError(str(error)) from error

    def reset(self):
        """Close the connection with a reset instead of a regular end."""
        one = self._writer.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def head(self):
        """Receive the head of a response."""
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ClosedError(str(error)) from error
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        return Head(int(lines[0].split()[1]), headers)

    async def parts(self, head):
        """Yield the body of a response in parts: the chunks of a stream, or as it arrives."""
        try:
            if head.headers.get("transfer-encoding") == "chunked":
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    yield await self._reader.readexactly(size)
                    await self._reader.readexactly(2)
                await self._reader.readexactly(2)
                return
            remaining = int(head.headers.get("content-length", 0))
            while remaining:
                part = await self._reader.read(min(READ_BYTES, remaining))
                if not part:
                    raise ClosedError(f"{remaining} bytes of the response are missing")
                remaining -= len(part)
                yield part
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ClosedError(str(error)) from error

    async def response(self):
        """Receive a response: its head and body."""
        head = await self.head()
        return head, b"".join([part async for part in self.parts(head)])

    async def wait_for_end(self):
        """Wait until the server closes the connection, and return the bytes that it sent before."""
        try:
            return await self._reader.read(-1)
        except OSError:
            return b""
