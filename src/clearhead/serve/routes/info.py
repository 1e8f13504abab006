"""Routes for health, metrics and models, and the web pages."""

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

from clearhead.serve.application_state import ApplicationState
from clearhead.serve.model_registry import LoadedModel
from clearhead.serve.pages import web_pages
from clearhead.serve.schemas import Health, ModelName, ModelOut, ModelsResponse


def add_info_routes(app: FastAPI, state: ApplicationState) -> None:
    """Add the routes for health, metrics and models."""

    @app.head("/health/live", include_in_schema=False)
    @app.get("/health/live")
    async def live() -> Health:
        """Report that the process is alive."""
        return Health(status="alive")

    @app.head("/health/ready", include_in_schema=False)
    @app.get("/health/ready", responses={503: {"model": Health}})
    async def ready(response: Response) -> Health:
        """Report whether all models are loaded."""
        response.status_code = 200 if state.ready else 503
        return Health(status="ready" if state.ready else "loading")

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Return the metrics in the text format of Prometheus."""
        state.metrics.queue.set(state.batcher.pending_cost)
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4")

    def describe(model: LoadedModel) -> ModelOut:
        return ModelOut(id=model.name, created=state.started_at, tasks=list(model.handlers))

    @app.get("/v1/models")
    async def models() -> ModelsResponse:
        """List the loaded models and their tasks."""
        return ModelsResponse(data=[describe(model) for model in list(state.models.values())])

    @app.get("/v1/models/{name:path}")
    async def model(name: ModelName) -> ModelOut:
        """Return a loaded model and its tasks."""
        return describe(state.named_model(name))


def add_pages(app: FastAPI) -> None:
    """Add the home page and the page of the API document."""

    def add(path: str, name: str) -> None:
        text, policy = web_pages.page(name)

        @app.get(path, include_in_schema=False)
        async def page() -> HTMLResponse:
            return HTMLResponse(text, headers=web_pages.security_headers(policy))

    add("/", "home")
    add("/docs", "docs")
