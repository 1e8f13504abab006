"""Checks before the application: a request's id, its key, then its body; logs and counts every request."""

import hmac
import json
import logging
import re
import time
import traceback
import uuid
from collections.abc import Sequence

from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.serve.http.client_limits import network
from clearhead.serve.http.errors import error_body
from clearhead.serve.http.request_bodies import (
    BodyBudget,
    BodyReader,
    ClientDisconnectedError,
    RejectedRequestError,
    replayed,
)
from clearhead.serve.metrics import Metrics

log = logging.getLogger("clearhead.serve")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OPEN = ("/health/live", "/health/ready", "/", "/docs", "/openapi.json", "/favicon.ico")
"""Paths that need no key, for they return nothing of any text, and whose requests have no body."""
CLIENT_GONE = 499
"""nginx's status for a request whose client has gone; there is none in the standard."""


class RequestMiddleware:
    """ASGI middleware around the application.

    Args:
        app: the application.
        keys: API keys, one of which a client must send; none for no keys.
        bodies: what holds the requests' bodies.
        metrics: where requests are counted.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str], bodies: BodyBudget, metrics: Metrics) -> None:
        self.app, self.keys, self.bodies, self.metrics = app, [key.encode() for key in keys], bodies, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        scope["request_id"] = given if _ID.fullmatch(given) else uuid.uuid4().hex
        start = time.perf_counter()
        with self.bodies.reading(headers, receive) as reading:
            answer = _Answer(send, scope["request_id"], reading)
            try:
                await self._answered(scope, headers, reading, receive, answer)
            except Exception as error:
                # nothing of what happened inside goes to the client, and nothing of the client's text, which the
                # error's message may hold, into the log
                where = "".join(traceback.format_tb(error.__traceback__))
                log.error("request %s failed: %s\n%s", scope["request_id"], type(error).__name__, where)
                began = answer.status != CLIENT_GONE
                if not began:
                    said = f"something went wrong here; request {scope['request_id']}"
                    await _respond(answer, 500, said, "internal_error")
                answer.status = 500
            finally:
                seconds = time.perf_counter() - start
                method = scope["method"] if scope["method"] in _METHODS else "other"
                path = _path(scope)
                self.metrics.request(path, method, answer.status, seconds)
                log.info("%s %s %s %d %.1f ms", scope["request_id"], method, path, answer.status, 1000 * seconds)
            await answer.end()

    async def _answered(
        self, scope: Scope, headers: dict[bytes, bytes], reading: BodyReader, receive: Receive, answer: Send
    ) -> None:
        """Gives a request to the application, if its key is right and its body comes."""
        body = b""
        try:
            if scope["path"] not in OPEN:
                scope["client_id"] = self._client(scope, headers)
                body = await reading.read(scope["client_id"])
        except ClientDisconnectedError:
            return
        except RejectedRequestError as error:
            await _respond(answer, error.status, error.said, error.code)
            return
        await self.app(scope, replayed(body, receive), answer)

    def _client(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Return the client whose share of the limits a request uses: its key, or without keys its address.

        Raises:
            RejectedRequestError: its key is missing or wrong.
        """
        if not self.keys:
            return network(scope["client"])
        kind, _, sent = headers.get(b"authorization", b"").partition(b" ")
        # all are compared, in a time that tells nothing of how much was right
        right = [hmac.compare_digest(sent.strip(), key) for key in self.keys]
        if kind.lower() != b"bearer" or not any(right):
            raise RejectedRequestError(401, "an API key is required: Authorization: Bearer KEY", "invalid_api_key")
        return f"key {right.index(True)}"


class _Answer:
    """Send an answer, and after an answer that came before the end of the body also the end of the connection.

    Args:
        send: the server's.
        request_id: the request's.
        reading: the request's body.
    """

    def __init__(self, send: Send, request_id: str, reading: BodyReader) -> None:
        self._send, self._id, self._reading = send, request_id, reading
        self._early = False
        self.status = CLIENT_GONE

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status, self._early = message["status"], not self._reading.whole
            message["headers"] = [*message["headers"], (b"x-request-id", self._id.encode())]
            if self._early:
                message["headers"].append((b"connection", b"close"))
        elif self._early:
            message["more_body"] = True  # the connection is closed at the end of the answer
        await self._send(message)

    async def end(self) -> None:
        """Discard the rest of the body, so that the client can read the answer, and close the connection."""
        if self._early:
            await self._reading.drain()
            await self._send({"type": "http.response.body"})


def _path(scope: Scope) -> str:
    """The path as the application knows it; "other" for all else, for clients may not choose a metric's labels."""
    for route in scope["app"].routes:
        if route.matches(scope)[0] is not Match.NONE:
            return str(route.path)
    return "other"


async def _respond(send: Send, status: int, message: str, code: str) -> None:
    kind = "server_error" if status >= 500 else "authentication_error" if status == 401 else "invalid_request_error"
    body = json.dumps(error_body(message, code, kind=kind)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
