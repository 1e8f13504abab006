"""The paths that compute."""

import asyncio
import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from clearhead.pipelines.outputs import StreamedToken
from clearhead.serve import schemas
from clearhead.serve.application_state import State
from clearhead.serve.handlers.base import Name
from clearhead.serve.handlers.generation import Translate
from clearhead.serve.http.errors import RefusedError
from clearhead.serve.http.responses import EventStream, results
from clearhead.serve.model_registry import BatchKey
from clearhead.serve.pages import web_pages


@dataclass(frozen=True)
class _Done:
    """What was computed for a request.

    Args:
        model: by which model.
        results: a result for each of its texts.
        cost: of all of them.
    """

    model: str
    results: list[Any]
    cost: int


async def _computed(state: State, request: Request, use: Name, body: Any) -> _Done:
    """What a use makes of a body, once there is room for it."""
    model = state.model(body.model, use)
    does = model.uses[use]
    with state.batcher.place(does.estimate(body), request.scope["client_id"]) as place:
        work = await asyncio.to_thread(does.prepare, body)
        key = BatchKey(model.name, use, work.options)
        jobs = [(key, payload, cost) for payload, cost in work.jobs]
        found = await results(request, place, jobs) if jobs else []
        joined = await asyncio.to_thread(work.join, found)
    return _Done(model.name, joined, sum(cost for _, cost in work.jobs))


def compute(app: FastAPI, state: State) -> None:
    """Adds vectors, translations, summaries, answers, labels, runs."""

    @app.post("/v1/embeddings")
    async def embeddings(body: schemas.EmbeddingsRequest, request: Request) -> schemas.EmbeddingsResponse:
        """Vectors, as OpenAI's clients ask for them."""
        done = await _computed(state, request, "embed", body)
        return schemas.EmbeddingsResponse(
            data=[
                schemas.Embedding(index=number, embedding=_written(vector, body.encoding_format))
                for number, vector in enumerate(done.results)
            ],
            model=done.model,
            usage=schemas.Usage(prompt_tokens=done.cost, total_tokens=done.cost),
        )

    streams: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

    @app.post("/translate", response_model=schemas.TranslateResponse, responses=streams)
    async def translate(body: schemas.TranslateRequest, request: Request) -> Any:
        """Translations; of one text also token by token, as server-sent events."""
        if body.stream:
            return await _streamed(state, request, body)
        done = await _computed(state, request, "translate", body)
        return schemas.TranslateResponse(
            model=done.model,
            translations=[schemas.Translation(text=one.text, score=one.score) for one in done.results],
        )

    @app.post("/summarize")
    async def summarize(body: schemas.SummarizeRequest, request: Request) -> schemas.SummarizeResponse:
        """Summaries of documents of any length."""
        done = await _computed(state, request, "summarize", body)
        return schemas.SummarizeResponse(
            model=done.model,
            summaries=[schemas.SummaryOut(text=one.text, parts=len(one.parts)) for one in done.results],
        )

    @app.post("/answer")
    async def answer(body: schemas.AnswerRequest, request: Request) -> schemas.AnswerResponse:
        """Answers to a question about a text."""
        done = await _computed(state, request, "answer", body)
        (found,) = done.results
        return schemas.AnswerResponse(
            model=done.model,
            answers=[
                schemas.AnswerOut(text=one.text, score=one.score, start=one.start, end=one.end)
                for one in (found.n_best or (found,))
            ],
        )

    @app.post("/classify")
    async def classify(body: schemas.ClassifyRequest, request: Request) -> schemas.ClassifyResponse:
        """Labels of texts."""
        done = await _computed(state, request, "classify", body)
        return schemas.ClassifyResponse(
            model=done.model,
            classifications=[
                schemas.Label(label=one.label, score=one.probability, scores=one.probabilities) for one in done.results
            ],
        )

    @app.post("/view", response_model=None, responses={200: {"content": {"text/html": {}}}})
    async def view(body: schemas.ViewRequest, request: Request) -> HTMLResponse:
        """A real run as one HTML page: tokens, every step, attention, and of a translation its beams."""
        done = await _computed(state, request, "view", body)
        return HTMLResponse(done.results[0], headers=web_pages.headers(web_pages.run_policy()))


async def _streamed(state: State, request: Request, body: schemas.TranslateRequest) -> EventStream:
    """A translation's tokens as they are chosen; what is wrong with the request is said before the first."""
    if len(body.texts) != 1 or (body.beam_size or 1) > 1:
        raise RefusedError("a stream is of one text, with one beam")
    greedy = body.model_copy(update={"beam_size": 1})
    model = state.model(body.model, "translate")
    does = model.uses["translate"]
    assert isinstance(does, Translate)
    place = state.batcher.place(does.estimate(greedy), request.scope["client_id"])
    try:
        work = await asyncio.to_thread(does.prepare, greedy)
        ((_, cost),) = work.jobs
        events = EventStream(request, place, lambda: does.stream(greedy), cost, _told)
    except BaseException:
        place.leave()
        raise
    state.metrics.stream()
    return events


def _told(piece: StreamedToken) -> dict[str, Any]:
    return {"id": piece.id, "token": piece.token, "text": piece.text, "log_prob": piece.log_prob}


def _written(vector: np.ndarray, encoding: str) -> list[float] | str:
    if encoding == "float":
        return [float(number) for number in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
