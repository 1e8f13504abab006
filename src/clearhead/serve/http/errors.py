"""What can be wrong with a request, and how a client is told."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from clearhead.finite import NonFiniteError

_FIELD = 200
"""Most characters of a field's name that are repeated."""


class RefusedError(Exception):
    """What was asked for is well formed, and cannot be; the message is for the client who asked.

    Args:
        said: the message.
        field: the field that no text or option like that may be in, where one is wrong as such.
    """

    def __init__(self, said: str, field: str | None = None) -> None:
        super().__init__(said)
        self.field = field


class OverloadedError(Exception):
    """The queue is full, or the client's share of it.

    Args:
        retry_after: seconds after which there should be room.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue, or this client's share of it, is full; try again in {retry_after} s")
        self.retry_after = retry_after


class ShuttingDownError(Exception):
    """The server is about to end, and computes nothing more."""


class RequestAbandonedError(Exception):
    """Nobody waits for it any more."""


def error_body(
    message: str, code: str, param: str | None = None, kind: str = "invalid_request_error"
) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def non_finite_body(error: NonFiniteError) -> dict[str, Any]:
    """Return the body for a text that the model produced NaN for.

    A batch numbers the texts of several clients, so the message names the client's text without a number.
    """
    return error_body(str(error.changed(where="")), "non_finite", kind="server_error")


def handle_errors(app: FastAPI) -> None:
    """Has an application answer as OpenAI's clients read it; what is not known here becomes the guard's 500."""

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> JSONResponse:
        # the fields and what is wrong with them; what was sent is not repeated
        told: dict[str, list[str]] = {}
        for one in error.errors():
            told.setdefault(_field(one), []).append(str(one["msg"]).removeprefix("Value error, "))
        said = "; ".join(f"{place}: {' or '.join(dict.fromkeys(what))}" for place, what in told.items())
        return JSONResponse(error_body(said[:2000], "invalid_request", next(iter(told))), 422)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, ValueError | RecursionError):
            # FastAPI's of a body with bytes that are no Unicode, too many brackets, or too long a number
            return JSONResponse(error_body("body: it is no JSON that can be read", "invalid_request", "body"), 422)
        codes = {404: "not_found", 405: "method_not_allowed", 503: "not_ready"}
        kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
        body = error_body(str(error.detail), codes.get(error.status_code, "invalid_request"), kind=kind)
        return JSONResponse(body, error.status_code, headers=error.headers)

    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> JSONResponse:
        return JSONResponse(error_body(str(error), "invalid_request", error.field), 422 if error.field else 400)

    @app.exception_handler(NonFiniteError)
    async def non_finite(request: Request, error: NonFiniteError) -> JSONResponse:
        return JSONResponse(non_finite_body(error), 500)

    @app.exception_handler(OverloadedError)
    async def full(request: Request, error: OverloadedError) -> JSONResponse:
        body = error_body(str(error), "overloaded", kind="rate_limit_error")
        return JSONResponse(body, 429, headers={"Retry-After": str(error.retry_after)})

    @app.exception_handler(ShuttingDownError)
    async def ending(request: Request, error: ShuttingDownError) -> JSONResponse:
        return JSONResponse(error_body("the server is about to end", "draining", kind="server_error"), 503)

    @app.exception_handler(RequestAbandonedError)
    async def abandoned(request: Request, error: RequestAbandonedError) -> JSONResponse:
        # nobody reads it; 499 is what nginx calls it, for the log and the metrics
        return JSONResponse(error_body("the client has gone", "client_gone"), 499)


def _field(error: Any) -> str:
    """The field that is wrong, with its place in lists; the names that pydantic gives its types are left out."""
    if error["type"] == "json_invalid":
        return "body"
    place: list[str | int] = [*error["loc"][1:], "body"]
    # a field that is not known is called what the client calls it
    return ".".join([str(place[0])[:_FIELD], *(str(one) for one in place[1:] if isinstance(one, int))])
