"""The paths that tell of the server itself, and its pages."""

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from clearhead.serve import schemas
from clearhead.serve.application_state import State
from clearhead.serve.model_registry import LoadedModel
from clearhead.serve.pages import web_pages


def about(app: FastAPI, state: State) -> None:
    """Adds health, metrics and models."""

    @app.head("/health/live", include_in_schema=False)
    @app.get("/health/live")
    async def live() -> schemas.Health:
        """Whether the process answers."""
        return schemas.Health(status="alive")

    @app.head("/health/ready", include_in_schema=False)
    @app.get("/health/ready", responses={503: {"model": schemas.Health}})
    async def ready(response: Response) -> schemas.Health:
        """Whether all models are loaded."""
        response.status_code = 200 if state.ready else 503
        return schemas.Health(status="ready" if state.ready else "loading")

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        state.metrics.queue.set(state.batcher.waiting)
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4")

    def told(one: LoadedModel) -> schemas.ModelOut:
        return schemas.ModelOut(id=one.name, created=state.started, uses=list(one.uses))

    @app.get("/v1/models")
    async def models() -> schemas.ModelsResponse:
        """All loaded models, and what each can do."""
        return schemas.ModelsResponse(data=[told(one) for one in list(state.served.values())])

    @app.get("/v1/models/{name:path}")
    async def model(name: schemas.Called) -> schemas.ModelOut:
        """A loaded model, and what it can do."""
        if name not in state.served:
            raise HTTPException(404, f"model {name!r} is not loaded; these are: {', '.join(state.served)}")
        return told(state.served[name])


def pages(app: FastAPI) -> None:
    """Adds the pages for people."""

    def add(path: str, name: str) -> None:
        text, policy = web_pages.page(name)

        @app.get(path, include_in_schema=False)
        async def shown() -> HTMLResponse:
            return HTMLResponse(text, headers=web_pages.headers(policy))

    add("/", "home")
    add("/docs", "docs")
