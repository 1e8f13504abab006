"""Assemble the FastAPI application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI

from clearhead._version import __version__
from clearhead.serve.application_state import ApplicationState
from clearhead.serve.http.errors import add_error_handlers
from clearhead.serve.http.middleware import RequestMiddleware
from clearhead.serve.routes.inference import add_inference_routes
from clearhead.serve.routes.info import add_info_routes, add_pages
from clearhead.serve.schemas import ErrorResponse


def create_app(state: ApplicationState) -> FastAPI:
    """Return the application.

    It loads the models in the background after its start; `/health/ready` reports when they are loaded.

    Args:
        state: models, batcher, request bodies and metrics.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.start()
        yield
        await asyncio.to_thread(state.drain)

    statuses = (400, 401, 404, 408, 413, 422, 429, 500, 503)
    errors: dict[int | str, dict[str, Any]] = {status: {"model": ErrorResponse} for status in statuses}
    app = FastAPI(
        title="Clearhead",
        version=__version__,
        lifespan=lifespan,
        responses=errors,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # the target of such a redirect would be the Host header of the client
    )
    app.add_middleware(RequestMiddleware, api_keys=state.settings.api_keys, bodies=state.bodies, metrics=state.metrics)
    add_error_handlers(app)
    add_info_routes(app, state)
    add_pages(app)
    add_inference_routes(app, state)
    return app
