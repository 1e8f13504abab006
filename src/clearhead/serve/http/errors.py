"""Errors of requests, and the responses to them in the format of OpenAI's API."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from clearhead.finite import NonFiniteError

_MAX_FIELD_LENGTH = 200
"""Maximum number of characters of a field name in a message."""
_MAX_MESSAGE_LENGTH = 2000


class InvalidRequestError(Exception):
    """A well-formed request that the model cannot process. The message is sent to the client.

    Args:
        message: the problem, and how to fix it.
        field: the field whose value is invalid for every model; None if only this model rejects it.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class OverloadedError(Exception):
    """The queue, or the share of the client in it, is full.

    Args:
        retry_after: seconds after which there should be room.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue, or this client's share of it, is full; try again in {retry_after} s")
        self.retry_after = retry_after


class ShuttingDownError(Exception):
    """The server is shutting down and computes nothing more."""


class RequestAbandonedError(Exception):
    """The client disconnected before its results were computed."""


def error_body(
    message: str, code: str, param: str | None = None, kind: str = "invalid_request_error"
) -> dict[str, Any]:
    """Return the body of an error response in the format of OpenAI's API."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def non_finite_body(error: NonFiniteError) -> dict[str, Any]:
    """Return the body for a text that the model produced NaN for.

    A batch numbers the texts of several clients, so the message names the text of the client without a number.
    """
    return error_body(str(error.replace(location="")), "non_finite", kind="server_error")


def shutting_down_body() -> dict[str, Any]:
    """Return the body for a request that the server does not finish before it shuts down."""
    return error_body("the server is shutting down", "draining", kind="server_error")


def _reason(detail: Mapping[str, Any]) -> str:
    """Return what is wrong with a field."""
    reasons = {"extra_forbidden": "unknown field; /docs lists the fields", "missing": "required field is missing"}
    return reasons.get(detail["type"], str(detail["msg"]).removeprefix("Value error, "))


def add_error_handlers(app: FastAPI) -> None:
    """Add an error handler for each known exception. The middleware turns all others into status 500."""

    @app.exception_handler(RequestValidationError)
    async def invalid_body(request: Request, error: RequestValidationError) -> JSONResponse:
        # the message names the fields, but never repeats their values
        messages: dict[str, list[str]] = {}
        for detail in error.errors():
            messages.setdefault(_field(detail), []).append(_reason(detail))
        message = "; ".join(f"{field}: {' or '.join(dict.fromkeys(texts))}" for field, texts in messages.items())
        return JSONResponse(error_body(message[:_MAX_MESSAGE_LENGTH], "invalid_request", next(iter(messages))), 422)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, ValueError | RecursionError):
            # FastAPI raises these for invalid UTF-8, too deep nesting or too long numbers
            return JSONResponse(error_body("body: not readable as JSON", "invalid_request", "body"), 422)
        codes = {404: "not_found", 405: "method_not_allowed", 503: "not_ready"}
        kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
        body = error_body(str(error.detail), codes.get(error.status_code, "invalid_request"), kind=kind)
        return JSONResponse(body, error.status_code, headers=error.headers)

    @app.exception_handler(InvalidRequestError)
    async def invalid_request(request: Request, error: InvalidRequestError) -> JSONResponse:
        return JSONResponse(error_body(str(error), "invalid_request", error.field), 422 if error.field else 400)

    @app.exception_handler(NonFiniteError)
    async def non_finite(request: Request, error: NonFiniteError) -> JSONResponse:
        return JSONResponse(non_finite_body(error), 500)

    @app.exception_handler(OverloadedError)
    async def overloaded(request: Request, error: OverloadedError) -> JSONResponse:
        body = error_body(str(error), "overloaded", kind="rate_limit_error")
        return JSONResponse(body, 429, headers={"Retry-After": str(error.retry_after)})

    @app.exception_handler(ShuttingDownError)
    async def shutting_down(request: Request, error: ShuttingDownError) -> JSONResponse:
        return JSONResponse(shutting_down_body(), 503)

    @app.exception_handler(RequestAbandonedError)
    async def abandoned(request: Request, error: RequestAbandonedError) -> JSONResponse:
        # no client reads it; nginx's status 499 marks it in the log and the metrics
        return JSONResponse(error_body("the client disconnected", "client_gone"), 499)


def _field(detail: Any) -> str:
    """Return the name of the invalid field with its list indices, without pydantic's names of union members."""
    if detail["type"] == "json_invalid":
        return "body"
    location: list[str | int] = [*detail["loc"][1:], "body"]
    # the client chooses the name of an unknown field, so it is truncated
    indices = [str(part) for part in location[1:] if isinstance(part, int)]
    return ".".join([str(location[0])[:_MAX_FIELD_LENGTH], *indices])
