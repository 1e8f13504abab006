"""What stands before every request: its id, its key, its size, its time; and what is counted of it."""

import asyncio
import hmac
import json
import logging
import re
import time
import traceback
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.serve.metrics import Metrics

log = logging.getLogger("clearhead.serve")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
OPEN = ("/health/live", "/health/ready", "/", "/docs", "/openapi.json", "/favicon.ico")
"""Paths that need no key: they tell nothing of anybody's texts."""


class Guard:
    """ASGI middleware around the application.

    Args:
        app: the application.
        keys: API keys, one of which a client must send; none for no keys.
        largest_body: bytes.
        body_seconds: how long a body may take to come.
        metrics: where requests are counted.
    """

    def __init__(
        self, app: ASGIApp, *, keys: Sequence[str], largest_body: int, body_seconds: float, metrics: Metrics
    ) -> None:
        self.app, self.keys = app, [key.encode() for key in keys]
        self.largest_body, self.body_seconds, self.metrics = largest_body, body_seconds, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope["request_id"] = request_id
        start, status = time.perf_counter(), 500
        began = False

        async def answer(message: Message) -> None:
            nonlocal status, began
            if message["type"] == "http.response.start":
                began, status = True, message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            refused = self._refused(scope, headers)
            if refused is not None:
                await _respond(answer, *refused)
                return
            body = await self._body(receive)
            if body is not None:
                await self.app(scope, _replayed(body, receive), answer)
        except _TooLargeError:
            await _respond(answer, 413, self._too_large(), "body_too_large")
        except _TooSlowError:
            await _respond(answer, 408, f"the body did not come within {self.body_seconds:g} s", "body_too_slow")
        except Exception as error:
            # nothing of what happened inside goes to the client, and nothing of the client's text, which the error's
            # message may hold, into the log
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error("request %s failed: %s\n%s", request_id, type(error).__name__, where)
            if not began:
                await _respond(answer, 500, f"something went wrong here; request {request_id}", "internal_error")
        finally:
            seconds = time.perf_counter() - start
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.request(path, scope["method"], status, seconds)
            log.info("%s %s %s %d %.1f ms", request_id, scope["method"], path, status, 1000 * seconds)

    def _refused(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if self.keys and scope["path"] not in OPEN:
            kind, _, sent = headers.get(b"authorization", b"").partition(b" ")
            # all are compared, in a time that tells nothing of how much was right
            right = [hmac.compare_digest(sent.strip(), key) for key in self.keys]
            if kind.lower() != b"bearer" or not any(right):
                return 401, "an API key is wanted: Authorization: Bearer KEY", "invalid_api_key"
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.largest_body:
            return 413, self._too_large(), "body_too_large"
        return None

    def _too_large(self) -> str:
        return f"the body is larger than {self.largest_body:,} bytes"

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body, if it is not too large, and comes in time; None where the client goes away before.

        It is read here, for the application would take any error while it reads for a body that is broken.
        """
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    if sum(map(len, parts)) > self.largest_body:
                        raise _TooLargeError
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise _TooSlowError from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """First the body, then what else comes: that the client has gone."""
    first = True

    async def replayed() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed


class _TooLargeError(Exception):
    pass


class _TooSlowError(Exception):
    pass


def error_body(
    message: str, code: str, param: str | None = None, kind: str = "invalid_request_error"
) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


async def _respond(send: Send, status: int, message: str, code: str) -> None:
    kind = "server_error" if status >= 500 else "authentication_error" if status == 401 else "invalid_request_error"
    body = json.dumps(error_body(message, code, kind=kind)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
