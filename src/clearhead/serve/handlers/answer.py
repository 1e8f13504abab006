"""Handlers for question answering: extract a span of the context, or generate an answer."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from clearhead.generation.config import GenerationConfig
from clearhead.pipelines.answering.answers import EmptyContextError, SpanSearchConfig
from clearhead.pipelines.answering.generative_question_answerer import GenerativeQuestionAnswerer, best_generated_answer
from clearhead.pipelines.answering.span_search import best_answer
from clearhead.pipelines.question_answerer import WINDOW_LENGTH, QuestionAnswerer
from clearhead.pipelines.text_to_text import TextToText
from clearhead.serve.handlers.base import Handler, PreparedRequest, estimate_tokens
from clearhead.serve.handlers.generation import GenerationHandler
from clearhead.serve.http.errors import InvalidRequestError
from clearhead.serve.schemas import INTEGRAL, NonBlankText, OptionalModel, RequestBody
from clearhead.serve.settings import Settings
from clearhead.tokenizers.question_context import PairWindow, pair_windows

_MAX_ANSWER_LENGTH = 30
"""Maximum number of tokens of an answer, the default of `QuestionAnswerer.answers`."""
_STRIDE = 128
_PATH = "/answer"
_DESCRIPTION = "Answer a question from a text of any length."


class AnswerRequest(RequestBody):
    """A question and the text that answers it, of any length."""

    question: Annotated[NonBlankText, Field(max_length=10_000)]
    context: Annotated[NonBlankText, Field(max_length=1_000_000)]
    model: OptionalModel = None
    allow_no_answer: bool = False
    n_best: Annotated[int, Field(ge=1, le=20), INTEGRAL] = 1


class AnswerOut(BaseModel):
    """An answer. `start` and `end` are its character offsets in the context, null if it does not occur there."""

    text: str
    score: float
    start: int | None
    end: int | None


class AnswerResponse(BaseModel):
    """Answers, best first."""

    model: str
    answers: list[AnswerOut]


def _response(model: str, results: list[Any]) -> AnswerResponse:
    (best,) = results
    answers = [
        AnswerOut(text=answer.text, score=answer.score, start=answer.start, end=answer.end)
        for answer in (best.n_best or (best,))
    ]
    return AnswerResponse(model=model, answers=answers)


class SpanAnswerHandler(Handler[AnswerRequest, QuestionAnswerer]):
    """Extract the answer from the context with a span head."""

    task = "answer"
    path = _PATH
    description = _DESCRIPTION
    request_body = AnswerRequest
    response_body = AnswerResponse
    pipeline_types = (QuestionAnswerer,)

    def estimate(self, body: AnswerRequest) -> int:
        """Estimate the number of tokens of the question and the context."""
        return estimate_tokens([body.question, body.context])

    def prepare(self, body: AnswerRequest) -> PreparedRequest:
        """Split the context into overlapping windows. Each window becomes one job."""
        context, max_length = body.context, min(WINDOW_LENGTH, self.pipeline.max_length)
        config = SpanSearchConfig(body.n_best, body.allow_no_answer, 0.0, _MAX_ANSWER_LENGTH, max_length, _STRIDE)
        try:
            (windows,) = pair_windows(self.pipeline.tokenizer, [(body.question, context)], max_length, _STRIDE)
        except ValueError as error:
            raise InvalidRequestError(str(error).replace(" of pair 0", "")) from None

        def join(logits: list[Any]) -> list[Any]:
            try:
                return [best_answer(context, windows, logits, config)]
            except EmptyContextError as error:
                raise InvalidRequestError(str(error)) from None

        return PreparedRequest([(window, len(window.ids)) for window in windows], join=join)

    def run(self, payloads: Sequence[PairWindow], **options: Any) -> Sequence[Any]:
        """Compute the start and end logits of each window."""
        return self.pipeline.span_logits(payloads, None)

    def respond(self, body: AnswerRequest, results: list[Any], num_tokens: int) -> AnswerResponse:
        """Return the best answers."""
        return _response(self.pipeline.name, results)


class GeneratedAnswerHandler(GenerationHandler[AnswerRequest]):
    """Generate the answer with an encoder–decoder."""

    task = "answer"
    path = _PATH
    description = _DESCRIPTION
    request_body = AnswerRequest
    response_body = AnswerResponse

    def __init__(self, pipeline: TextToText, settings: Settings) -> None:
        super().__init__(pipeline, settings)
        self._answerer = GenerativeQuestionAnswerer(pipeline)

    def estimate(self, body: AnswerRequest) -> int:
        """Estimate the number of input and output tokens."""
        return self.cost(estimate_tokens([body.question, body.context]), self._config(body, []))

    def prepare(self, body: AnswerRequest) -> PreparedRequest:
        """Split the context into parts, each with the question. Each part becomes one job."""
        try:
            sources = self._answerer.source_texts(body.question, body.context, None, 0)
        except ValueError as error:
            raise InvalidRequestError(str(error).removeprefix("pair 0: ")) from None
        config = self._config(body, sources)
        self.check_generated_tokens(len(sources), config)

        def join(outputs: list[Any]) -> list[Any]:
            return [best_generated_answer(outputs, body.context, body.n_best, body.allow_no_answer)]

        return PreparedRequest(self.jobs(sources, config), (("n_best", body.n_best),), join)

    def run(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """Return a `Generated` for each part."""
        return self._answerer.generate_answers(payloads, options["n_best"], _MAX_ANSWER_LENGTH)

    def respond(self, body: AnswerRequest, results: list[Any], num_tokens: int) -> AnswerResponse:
        """Return the best answers."""
        return _response(self.pipeline.name, results)

    def _config(self, body: AnswerRequest, sources: Sequence[str]) -> GenerationConfig:
        beams = max(self.pipeline.generation_config.beam_size, body.n_best)
        return self.generation_config(sources, beam_size=beams, max_new_tokens=_MAX_ANSWER_LENGTH)
