"""What stands before every request: its id, its key, its size, its time; and what is counted of it."""

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

from clearhead.serve.bodies import Bodies, ClientGoneError, Reading, TurnedAwayError, replayed
from clearhead.serve.errors import error_body
from clearhead.serve.metrics import Metrics

log = logging.getLogger("clearhead.serve")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OPEN = ("/health/live", "/health/ready", "/", "/docs", "/openapi.json", "/favicon.ico")
"""Paths that need no key: they tell nothing of anybody's texts."""
CLIENT_GONE = 499
"""nginx's status for a request whose client has gone; there is none in the standard."""


class Guard:
    """ASGI middleware around the application.

    Args:
        app: the application.
        keys: API keys, one of which a client must send; none for no keys.
        bodies: what holds the requests' bodies.
        metrics: where requests are counted.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str], bodies: Bodies, metrics: Metrics) -> None:
        self.app, self.keys, self.bodies, self.metrics = app, [key.encode() for key in keys], bodies, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        scope["request_id"] = given if _ID.fullmatch(given) else uuid.uuid4().hex
        start, status = time.perf_counter(), CLIENT_GONE

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", scope["request_id"].encode())]
            await send(message)

        try:
            with self.bodies.reading() as reading:
                await self._answered(scope, headers, reading, receive, answer)
        except Exception as error:
            # nothing of what happened inside goes to the client, and nothing of the client's text, which the error's
            # message may hold, into the log
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error("request %s failed: %s\n%s", scope["request_id"], type(error).__name__, where)
            began, status = status != CLIENT_GONE, 500
            if not began:
                said = f"something went wrong here; request {scope['request_id']}"
                await _respond(answer, 500, said, "internal_error")
        finally:
            seconds = time.perf_counter() - start
            method = scope["method"] if scope["method"] in _METHODS else "other"
            path = _path(scope)
            self.metrics.request(path, method, status, seconds)
            log.info("%s %s %s %d %.1f ms", scope["request_id"], method, path, status, 1000 * seconds)

    async def _answered(
        self, scope: Scope, headers: dict[bytes, bytes], reading: Reading, receive: Receive, answer: Send
    ) -> None:
        """Gives a request to the application, if its key is right and its body comes."""
        try:
            self._check_key(scope, headers)
            length = headers.get(b"content-length", b"0")
            self.bodies.check(int(length) if length.isdigit() else 0)
            body = await reading.read(receive)
        except ClientGoneError:
            return
        except TurnedAwayError as error:
            # one whose time is over is not waited for again; who waits to be told to go on has not begun to send
            if error.code not in ("body_too_slow", "draining") and b"expect" not in headers:
                await reading.drain(receive)
            await _respond(answer, error.status, error.said, error.code, close=not reading.whole)
            return
        await self.app(scope, replayed(body, receive), answer)

    def _check_key(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if self.keys and scope["path"] not in OPEN:
            kind, _, sent = headers.get(b"authorization", b"").partition(b" ")
            # all are compared, in a time that tells nothing of how much was right
            right = [hmac.compare_digest(sent.strip(), key) for key in self.keys]
            if kind.lower() != b"bearer" or not any(right):
                raise TurnedAwayError(401, "an API key is wanted: Authorization: Bearer KEY", "invalid_api_key")


def _path(scope: Scope) -> str:
    """The path as the application knows it; "other" for all else, for clients may not choose a metric's labels."""
    for route in scope["app"].routes:
        if route.matches(scope)[0] is not Match.NONE:
            return str(route.path)
    return "other"


async def _respond(send: Send, status: int, message: str, code: str, *, close: bool = False) -> None:
    kind = "server_error" if status >= 500 else "authentication_error" if status == 401 else "invalid_request_error"
    body = json.dumps(error_body(message, code, kind=kind)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
