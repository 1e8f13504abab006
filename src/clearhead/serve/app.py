"""The application: its paths, and how they come to their answers."""

import asyncio
import base64
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from clearhead import __version__
from clearhead.run.precision import Precision
from clearhead.serve import schemas, site
from clearhead.serve.batching import Batcher, DrainingError, OverloadedError
from clearhead.serve.guard import Guard, error_body
from clearhead.serve.metrics import Metrics
from clearhead.serve.models import Key, Served, TooLongError, Use, load
from clearhead.text.interface import Tokens

log = logging.getLogger("clearhead.serve")


@dataclass(frozen=True)
class Settings:
    """How the server works.

    Args:
        models: what is loaded: folders, Hub ids, or NAME=one of these.
        precision, device: as in `TextEncoder`.
        keys: API keys; none for no keys.
        largest_body: bytes of a request's body.
        body_seconds: how long a body may take to come.
        batch_tokens: tokens that are computed together, of all clients.
        queue_tokens: tokens that may wait.
    """

    models: Sequence[str]
    precision: Precision = "auto"
    device: str = "auto"
    keys: Sequence[str] = ()
    largest_body: int = 4 * 2**20
    body_seconds: float = 30.0
    batch_tokens: int = 16_384
    queue_tokens: int = 262_144


@dataclass
class _State:
    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    served: dict[str, Served] = field(default_factory=dict)
    ready: bool = False
    failed: str | None = None
    started: int = field(default_factory=lambda: int(time.time()))
    batcher: Batcher = field(init=False)

    def __post_init__(self) -> None:
        self.batcher = Batcher(
            lambda key, payloads: self.served[key.model].perform(key, payloads),
            batch_cost=self.settings.batch_tokens,
            queue_cost=self.settings.queue_tokens,
            observe=self.metrics.batch,
        )

    def load(self) -> None:
        """Loads all models; what goes wrong is kept, for `/health/ready` and the log."""
        try:
            for asked in self.settings.models:
                one = load(asked, self.settings.precision, self.settings.device)
                self.served[one.name] = one
                log.info("loaded %s: %s", one.name, ", ".join(one.uses))
        except Exception as error:
            self.failed = type(error).__name__
            log.exception("loading failed")
            return
        self.batcher.start()
        self.ready = True

    def model(self, name: str | None, use: Use) -> Served:
        """The model that was asked for, or the first that can.

        Raises:
            HTTPException: it is not loaded (404), cannot do this (400), or nothing is loaded yet (503).
        """
        if not self.ready:
            raise HTTPException(503, "the models are still being loaded")
        able = [one for one in self.served.values() if use in one.uses]
        if name is None and able:
            return able[0]
        if name in self.served:
            if use not in self.served[name].uses:
                raise HTTPException(400, f"model {name!r} cannot {use}; it can {', '.join(self.served[name].uses)}")
            return self.served[name]
        loaded = ", ".join(self.served)
        raise HTTPException(
            404, f"no loaded model can {use}" if name is None else f"model {name!r} is not loaded; these are: {loaded}"
        )


def create_app(settings: Settings) -> FastAPI:
    """The application for some models.

    Args:
        settings: how it works.

    The models are loaded in the background when it starts; `/health/ready` says when they are there.
    """
    state = _State(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=state.load, name="load", daemon=True).start()
        yield
        if state.ready:
            await asyncio.to_thread(state.batcher.drain, 30.0)

    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": schemas.ErrorResponse} for status in (400, 401, 404, 408, 413, 422, 429, 500, 503)
    }
    app = FastAPI(
        title="Clearhead", version=__version__, lifespan=lifespan, responses=errors, docs_url=None, redoc_url=None
    )
    app.state.clearhead = state
    app.add_middleware(
        Guard,
        keys=settings.keys,
        largest_body=settings.largest_body,
        body_seconds=settings.body_seconds,
        metrics=state.metrics,
    )
    _handle_errors(app)
    _tell(app, state)
    _pages(app)
    _compute(app, state)
    return app


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> JSONResponse:
        # the fields and what is wrong with them; what was sent is not repeated
        told: dict[str, list[str]] = {}
        for one in error.errors():
            told.setdefault(_field(one), []).append(str(one["msg"]))
        said = "; ".join(f"{place}: {' or '.join(dict.fromkeys(what))}" for place, what in told.items())
        return JSONResponse(error_body(said[:2000], "invalid_request", next(iter(told))), 422)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        codes = {404: "not_found", 405: "method_not_allowed", 503: "not_ready"}
        kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
        body = error_body(str(error.detail), codes.get(error.status_code, "invalid_request"), kind=kind)
        return JSONResponse(body, error.status_code, headers=error.headers)

    @app.exception_handler(OverloadedError)
    async def full(request: Request, error: OverloadedError) -> JSONResponse:
        body = error_body(str(error), "overloaded", kind="rate_limit_error")
        return JSONResponse(body, 429, headers={"Retry-After": str(error.retry_after)})

    @app.exception_handler(DrainingError)
    async def ending(request: Request, error: DrainingError) -> JSONResponse:
        return JSONResponse(error_body("the server is about to end", "draining", kind="server_error"), 503)


def _field(error: Any) -> str:
    """The field that is wrong, with its place in lists; the names that pydantic gives its types are left out."""
    if error["type"] == "json_invalid":
        return "body"
    place: list[str | int] = [*error["loc"][1:], "body"]
    return ".".join([str(place[0]), *(str(one) for one in place[1:] if isinstance(one, int))])


def _tell(app: FastAPI, state: _State) -> None:
    """The paths that tell of the server itself."""

    @app.get("/health/live")
    async def live() -> schemas.Health:
        """Whether the process answers."""
        return schemas.Health(status="alive")

    @app.get("/health/ready", responses={503: {"model": schemas.Health}})
    async def ready(response: Response) -> schemas.Health:
        """Whether all models are loaded."""
        response.status_code = 200 if state.ready else 503
        return schemas.Health(status="ready" if state.ready else "failed" if state.failed else "loading")

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        state.metrics.queue.set(state.batcher.waiting)
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models() -> schemas.ModelsResponse:
        """All loaded models, and what each can do."""
        return schemas.ModelsResponse(
            data=[
                schemas.ModelOut(id=one.name, created=state.started, uses=list(one.uses))
                for one in state.served.values()
            ]
        )


def _pages(app: FastAPI) -> None:
    """The paths for people."""

    def add(path: str, name: str) -> None:
        text, policy = site.page(name)
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}

        @app.get(path, include_in_schema=False)
        async def shown() -> HTMLResponse:
            return HTMLResponse(text, headers=headers)

    add("/", "home")
    add("/docs", "docs")


def _compute(app: FastAPI, state: _State) -> None:
    """The paths that compute."""

    @app.post("/v1/embeddings")
    async def embeddings(body: schemas.EmbeddingsRequest, request: Request) -> schemas.EmbeddingsResponse:
        """Vectors, as OpenAI's clients ask for them."""
        model = state.model(body.model, "embed")
        tokens = await asyncio.to_thread(_embedded, model, body)
        width = model.uses["embed"].width()
        if body.dimensions is not None and body.dimensions > width:
            raise HTTPException(400, f"dimensions is {body.dimensions}; this model's vectors have {width} numbers")
        key = Key(model.name, "embed", (("truncate_dim", body.dimensions),) if body.dimensions else ())
        vectors = await _all(state, request, [(key, one, len(one.ids)) for one in tokens])
        count = sum(len(one.ids) for one in tokens)
        return schemas.EmbeddingsResponse(
            data=[
                schemas.Embedding(index=n, embedding=_written(v, body.encoding_format)) for n, v in enumerate(vectors)
            ],
            model=model.name,
            usage=schemas.Usage(prompt_tokens=count, total_tokens=count),
        )

    @app.post(
        "/translate", response_model=schemas.TranslateResponse, responses={200: {"content": {"text/event-stream": {}}}}
    )
    async def translate(body: schemas.TranslateRequest, request: Request) -> Any:
        """Translations; of one text also token by token, as server-sent events."""
        model = state.model(body.model, "translate")
        texts = _listed(body.text)
        costs = await asyncio.to_thread(_costs, model, "translate", texts, cut=body.truncate)
        options = _options(body)
        if body.stream:
            if len(texts) != 1 or (body.beam_size or 1) > 1:
                raise HTTPException(400, "a stream is of one text, with one beam")
            return await _streamed(state, request, model, texts[0], options, costs[0])
        key = Key(model.name, "translate", options)
        found = await _all(state, request, [(key, text, cost) for text, cost in zip(texts, costs, strict=True)])
        return schemas.TranslateResponse(
            model=model.name, translations=[schemas.Translation(text=one.text, score=one.score) for one in found]
        )

    @app.post("/summarize")
    async def summarize(body: schemas.SummarizeRequest, request: Request) -> schemas.SummarizeResponse:
        """Summaries of documents of any length."""
        model = state.model(body.model, "summarize")
        texts = _listed(body.text)
        costs = await asyncio.to_thread(_costs, model, "summarize", texts, cut=True)
        key = Key(model.name, "summarize", _options(body))
        found = await _all(state, request, [(key, text, cost) for text, cost in zip(texts, costs, strict=True)])
        return schemas.SummarizeResponse(
            model=model.name, summaries=[schemas.SummaryOut(text=one.text, parts=len(one.parts)) for one in found]
        )

    @app.post("/answer")
    async def answer(body: schemas.AnswerRequest, request: Request) -> schemas.AnswerResponse:
        """Answers to a question about a text."""
        model = state.model(body.model, "answer")
        key = Key(model.name, "answer", (("allow_no_answer", body.allow_no_answer), ("n_best", body.n_best)))
        cost = 1 + len(body.context) // 4
        (found,) = await _all(state, request, [(key, (body.question, body.context), cost)])
        return schemas.AnswerResponse(
            model=model.name,
            answers=[
                schemas.AnswerOut(text=one.text, score=one.score, start=one.start, end=one.end)
                for one in (found.n_best or (found,))
            ],
        )

    @app.post("/classify")
    async def classify(body: schemas.ClassifyRequest, request: Request) -> schemas.ClassifyResponse:
        """Labels of texts."""
        model = state.model(body.model, "classify")
        texts = _listed(body.text)
        costs = await asyncio.to_thread(_costs, model, "classify", texts, cut=body.truncate)
        key = Key(model.name, "classify")
        found = await _all(state, request, [(key, text, cost) for text, cost in zip(texts, costs, strict=True)])
        return schemas.ClassifyResponse(
            model=model.name,
            classifications=[
                schemas.Label(label=one.label, score=one.probability, scores=one.probabilities) for one in found
            ],
        )

    @app.post("/view", response_model=None, responses={200: {"content": {"text/html": {}}}})
    async def view(body: schemas.ViewRequest, request: Request) -> HTMLResponse:
        """A real run as one HTML page: tokens, every step, attention, and of a translation its beams."""
        model = state.model(body.model, "view")
        (cost,) = await asyncio.to_thread(_costs, model, "view", [body.text], cut=False)
        (found,) = await _all(state, request, [(Key(model.name, "view"), body.text, cost)])
        return HTMLResponse(found)


def _embedded(model: Served, body: schemas.EmbeddingsRequest) -> list[Tokens]:
    """The tokens of what shall be embedded: texts, or ids as they are."""
    given = body.input
    encoder, limit = model.uses["embed"], model.limit("embed")
    if isinstance(given, str) or (given and isinstance(given[0], str)):
        texts = _listed(given)
        if body.truncate:
            return list(encoder.tokenize(texts))
        tokens = model.tokens("embed", texts)
    else:
        rows: Any = [given] if given and isinstance(given[0], int) else given
        size = encoder.model.config.vocab_size
        if any(number >= size for row in rows for number in row):
            raise HTTPException(400, f"input: token ids lie in 0 to {size - 1}")
        tokens = [Tokens(row[:limit] if body.truncate else row, truncated=False) for row in rows]
    _check_lengths(tokens, limit)
    return tokens


def _costs(model: Served, use: Use, texts: Sequence[str], *, cut: bool) -> list[int]:
    """How many tokens each text has.

    Raises:
        HTTPException: one is too long, and may not be cut.
    """
    tokens, limit = model.tokens(use, texts), model.limit(use)
    if not cut:
        _check_lengths(tokens, limit)
    return [len(one.ids) for one in tokens]


def _check_lengths(tokens: Sequence[Tokens], limit: int | None) -> None:
    for number, one in enumerate(tokens):
        if limit is not None and len(one.ids) > limit:
            raise HTTPException(400, f"text {number}: {TooLongError(len(one.ids), limit)}; truncate=true cuts it")


def _options(body: schemas.GenerationRequest) -> tuple[tuple[str, Any], ...]:
    names = ("source_lang", "target_lang", "beam_size", "max_new_tokens", "length_penalty")
    return tuple((name, getattr(body, name)) for name in names if getattr(body, name) is not None)


def _listed(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _written(vector: np.ndarray, encoding: str) -> list[float] | str:
    if encoding == "float":
        return [float(number) for number in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


async def _all(state: _State, request: Request, jobs: Sequence[tuple[Key, Any, int]]) -> list[Any]:
    """The results of all jobs; when the client goes away, those that have not begun are let go."""
    if not jobs:
        return []
    futures = state.batcher.submit(jobs)
    done: asyncio.Future[list[Any]] = asyncio.gather(*(asyncio.wrap_future(one) for one in futures))
    gone = asyncio.ensure_future(_gone(request))
    first: set[asyncio.Future[Any]] = {done, gone}
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise HTTPException(499, "the client has gone")
        return await done
    except ValueError as error:  # what this library says of what it was given
        raise HTTPException(400, str(error)) from None
    finally:
        gone.cancel()
        done.cancel()
        _cancel(futures)


def _cancel(futures: Sequence["Future[Any]"]) -> None:
    for one in futures:
        one.cancel()


async def _gone(request: Request) -> None:
    """Returns when the client has gone away."""
    while not await request.is_disconnected():
        await asyncio.sleep(0.1)


async def _streamed(
    state: _State, request: Request, model: Served, text: str, options: tuple[tuple[str, Any], ...], cost: int
) -> StreamingResponse:
    """A translation's tokens as server-sent events; the last is [DONE]."""
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def tell(piece: Any) -> None:
        loop.call_soon_threadsafe(pieces.put_nowait, piece)

    given = {name: value for name, value in options if name != "beam_size"}
    make: Callable[[], Iterator[Any]] = lambda: model.uses["translate"].stream(text, **given)  # noqa: E731
    stop = state.batcher.stream(make, tell, max(1, cost))

    async def events() -> AsyncIterator[str]:
        try:
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, Exception):
                    log.error("request %s: a stream failed: %s", request.scope.get("request_id"), type(piece).__name__)
                    wrong = error_body("something went wrong here", "internal_error", kind="server_error")
                    yield f"event: error\ndata: {json.dumps(wrong)}\n\n"
                    return
                told = {"id": piece.id, "token": piece.token, "text": piece.text, "log_prob": piece.log_prob}
                yield f"data: {json.dumps(told)}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            stop()

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
