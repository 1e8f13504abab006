"""ASGI middleware that checks API keys, reads bodies, and logs and counts every request."""

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

from clearhead.serve.http.client_limits import client_network
from clearhead.serve.http.errors import error_body
from clearhead.serve.http.request_bodies import (
    BodyBudget,
    BodyReader,
    ClientDisconnectedError,
    RejectedRequestError,
    replay_body,
)
from clearhead.serve.metrics import Metrics

log = logging.getLogger("clearhead.serve")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OPEN_PATHS = ("/health/live", "/health/ready", "/", "/docs", "/openapi.json", "/favicon.ico")
"""Paths that need no key. Their responses contain no text of a request, and their requests have no body."""
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a request whose client disconnected; HTTP defines none."""


class RequestMiddleware:
    """Check, log and count every request.

    Args:
        app: the application.
        api_keys: accepted API keys; empty to accept every request.
        bodies: memory budget of the request bodies.
        metrics: counts the requests.
    """

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str], bodies: BodyBudget, metrics: Metrics) -> None:
        self.app, self.bodies, self.metrics = app, bodies, metrics
        self.api_keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        sent_id = headers.get(b"x-request-id", b"").decode("latin-1")
        scope["request_id"] = sent_id if _REQUEST_ID.fullmatch(sent_id) else uuid.uuid4().hex
        start = time.perf_counter()
        with self.bodies.reader(headers, receive) as reader:
            response = _Response(send, scope["request_id"], reader)
            try:
                await self._dispatch(scope, headers, reader, receive, response)
            except Exception as error:
                # the client gets no internals; the log gets no text of the client, which the message may contain
                where = "".join(traceback.format_tb(error.__traceback__))
                log.error("request %s failed: %s\n%s", scope["request_id"], type(error).__name__, where)
                if response.status == CLIENT_CLOSED_REQUEST:  # the response has not started
                    message = f"internal error; request {scope['request_id']}"
                    await _send_error(response, 500, message, "internal_error")
                response.status = 500
            finally:
                seconds = time.perf_counter() - start
                method = scope["method"] if scope["method"] in _METHODS else "other"
                path = _route_path(scope)
                self.metrics.record_request(path, method, response.status, seconds)
                log.info("%s %s %s %d %.1f ms", scope["request_id"], method, path, response.status, 1000 * seconds)
            await response.end()

    async def _dispatch(
        self, scope: Scope, headers: dict[bytes, bytes], reader: BodyReader, receive: Receive, response: Send
    ) -> None:
        """Check the key, read the body, and pass the request to the application."""
        body = b""
        try:
            if scope["path"] not in OPEN_PATHS:
                scope["client_id"] = self._client_id(scope, headers)
                body = await reader.read(scope["client_id"])
        except ClientDisconnectedError:
            return
        except RejectedRequestError as error:
            await _send_error(response, error.status, str(error), error.code)
            return
        await self.app(scope, replay_body(body, receive), response)

    def _client_id(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Return the client whose share of the limits a request uses: its key, or without keys its address.

        Raises:
            RejectedRequestError: the key is missing or wrong.
        """
        if not self.api_keys:
            return client_network(scope["client"])
        kind, _, sent = headers.get(b"authorization", b"").partition(b" ")
        # all keys are compared in constant time, so that the time reveals nothing about them
        matches = [hmac.compare_digest(sent.strip(), key) for key in self.api_keys]
        if kind.lower() != b"bearer" or not any(matches):
            raise RejectedRequestError(401, "an API key is required: Authorization: Bearer KEY", "invalid_api_key")
        return f"key {matches.index(True)}"


class _Response:
    """Send a response with its request id. A response before the end of the body also closes the connection.

    Args:
        send: ASGI's send of the server.
        request_id: id of the request.
        reader: reader of the request body.
    """

    def __init__(self, send: Send, request_id: str, reader: BodyReader) -> None:
        self._send, self._request_id, self._reader = send, request_id, reader
        self._early = False
        self.status = CLIENT_CLOSED_REQUEST

    async def __call__(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.status, self._early = message["status"], not self._reader.complete
            message["headers"] = [*message["headers"], (b"x-request-id", self._request_id.encode())]
            if self._early:
                message["headers"].append((b"connection", b"close"))
        elif self._early:
            message["more_body"] = True  # `end` closes the connection
        await self._send(message)

    async def end(self) -> None:
        """Discard the rest of the body, so that the client can read the response, and close the connection."""
        if self._early:
            await self._reader.drain()
            await self._send({"type": "http.response.body"})


def _route_path(scope: Scope) -> str:
    """Return the path of the matching route, else "other": clients must not create labels of a metric."""
    for route in scope["app"].routes:
        if route.matches(scope)[0] is not Match.NONE:
            return str(route.path)
    return "other"


async def _send_error(send: Send, status: int, message: str, code: str) -> None:
    kind = "server_error" if status >= 500 else "authentication_error" if status == 401 else "invalid_request_error"
    body = json.dumps(error_body(message, code, kind=kind)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
