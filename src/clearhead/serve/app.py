"""The application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI

from clearhead._version import __version__
from clearhead.serve import schemas
from clearhead.serve.application_state import State
from clearhead.serve.http.errors import handle_errors
from clearhead.serve.http.middleware import RequestMiddleware
from clearhead.serve.routes.inference import compute
from clearhead.serve.routes.info import about, pages


def create_app(state: State) -> FastAPI:
    """The application.

    Args:
        state: what it holds.

    The models are loaded in the background when it starts; `/health/ready` says when they are there.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.start()
        yield
        await asyncio.to_thread(state.drain)

    statuses = (400, 401, 404, 408, 413, 422, 429, 500, 503)
    errors: dict[int | str, dict[str, Any]] = {status: {"model": schemas.ErrorResponse} for status in statuses}
    app = FastAPI(
        title="Clearhead",
        version=__version__,
        lifespan=lifespan,
        responses=errors,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # such a redirect goes to the host that the client names
    )
    app.add_middleware(RequestMiddleware, keys=state.settings.keys, bodies=state.bodies, metrics=state.metrics)
    handle_errors(app)
    about(app, state)
    pages(app)
    compute(app, state)
    return app
