"""Routes that run a model: one for each task of the handlers."""

import asyncio
from typing import Any

from fastapi import FastAPI, Request

from clearhead.serve.application_state import ApplicationState
from clearhead.serve.handlers import HANDLERS
from clearhead.serve.handlers.base import Handler
from clearhead.serve.http.responses import EventStream, wait_for_results
from clearhead.serve.model_registry import BatchKey


def add_inference_routes(app: FastAPI, state: ApplicationState) -> None:
    """Add the route of each task."""
    for handler in {handler.path: handler for handler in HANDLERS}.values():
        _add_route(app, state, handler)


def _add_route(app: FastAPI, state: ApplicationState, handler: type[Handler[Any, Any]]) -> None:
    async def endpoint(body: Any, request: Request) -> Any:
        return await _respond(state, request, handler.task, body)

    endpoint.__annotations__["body"] = handler.request_body  # FastAPI reads the schema from it
    content: dict[str, Any] = {media_type: {} for media_type in handler.media_types}
    app.add_api_route(
        handler.path,
        endpoint,
        methods=["POST"],
        name=handler.path.rpartition("/")[2],
        description=handler.description,
        response_model=handler.response_body,
        responses={200: {"content": content}} if content else None,
    )


async def _respond(state: ApplicationState, request: Request, task: str, body: Any) -> Any:
    """Run a request in the batcher and return its response."""
    model = state.model(body.model, task, body)
    handler = model.handlers[task]
    if handler.wants_stream(body):
        return await _stream(state, request, handler, body)
    with state.batcher.reserve(handler.estimate(body), request.scope["client_id"]) as reservation:
        prepared = await asyncio.to_thread(handler.prepare, body)
        key = BatchKey(model.name, task, prepared.options)
        jobs = [(key, payload, cost) for payload, cost in prepared.jobs]
        outputs = await wait_for_results(request, reservation, jobs) if jobs else []
        results = await asyncio.to_thread(prepared.join, outputs)
    return handler.respond(body, results, sum(cost for _, cost in prepared.jobs))


async def _stream(state: ApplicationState, request: Request, handler: Handler[Any, Any], body: Any) -> EventStream:
    """Return a stream of events. An invalid request raises an error before the first event."""
    reservation = state.batcher.reserve(handler.estimate(body), request.scope["client_id"])
    try:
        prepared = await asyncio.to_thread(handler.prepare, body)
        ((_, cost),) = prepared.jobs
        events = EventStream(request, reservation, lambda: handler.stream(body), cost)
    except BaseException:
        reservation.release()
        raise
    state.metrics.record_stream()
    return events
