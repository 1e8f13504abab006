"""Handler for translation and other text-to-text tasks, with streaming."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, Field

from clearhead.serve.handlers.base import PreparedRequest, estimate_tokens, max_tokenized_length
from clearhead.serve.handlers.generation import GenerationHandler, GenerationRequest
from clearhead.serve.http.errors import InvalidRequestError
from clearhead.serve.schemas import Options, Truncate


class TranslateRequest(GenerationRequest):
    """Texts to translate."""

    truncate: Truncate = False
    stream: bool = Field(False, description="Stream the tokens of one text as server-sent events, with greedy search.")


class Translation(BaseModel):
    """Translation of one text."""

    text: str
    score: float


class TranslateResponse(BaseModel):
    """Translations in the order of the texts."""

    model: str
    translations: list[Translation]


class TranslateHandler(GenerationHandler[TranslateRequest]):
    """Translate texts, or run another text-to-text task of the model."""

    task = "translate"
    path = "/translate"
    description = "Translate texts. One text can be streamed token by token as server-sent events."
    request_body = TranslateRequest
    response_body = TranslateResponse
    media_types = ("text/event-stream",)
    checkpoint_task = "translation"

    def accepts(self, body: TranslateRequest) -> bool:
        """Return whether the model's languages are those of the request, if it names any."""
        source, target = self.pipeline.direction or (body.source_lang, body.target_lang)
        return body.source_lang in (None, source) and body.target_lang in (None, target)

    def estimate(self, body: TranslateRequest) -> int:
        """Estimate the number of input and output tokens."""
        if body.stream and (len(body.texts) != 1 or (body.beam_size or 1) > 1):
            raise InvalidRequestError("a stream takes one text and one beam")
        config = self.generation_config(body.texts, **dict(_options(body)))
        limit = max_tokenized_length(self.pipeline.max_length, truncate=body.truncate)
        return sum(self.cost(estimate_tokens([text], limit), config) for text in body.texts)

    def prepare(self, body: TranslateRequest) -> PreparedRequest:
        """Count the tokens of each text. Each text becomes one job."""
        options = _options(body)
        config = self.generation_config(body.texts, **dict(options))
        self.check_generated_tokens(len(body.texts), config)
        return PreparedRequest(self.jobs(body.texts, config, truncate=body.truncate), options)

    def run(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """Return a `Generated` for each text."""
        return self.pipeline.generate(payloads, return_details=True, **options)

    def respond(self, body: TranslateRequest, results: list[Any], num_tokens: int) -> TranslateResponse:
        """Return the text and the score of each translation."""
        translations = [Translation(text=output.text, score=output.score) for output in results]
        return TranslateResponse(model=self.pipeline.name, translations=translations)

    def wants_stream(self, body: TranslateRequest) -> bool:
        """Return whether the request asks for a stream of tokens."""
        return body.stream

    def stream(self, body: TranslateRequest) -> Iterator[dict[str, Any]]:
        """Yield the tokens of the translation of the only text."""
        for token in self.pipeline.stream(body.texts[0], **dict(_options(body))):
            yield {"id": token.id, "token": token.token, "text": token.text, "log_prob": token.log_prob}


def _options(body: TranslateRequest) -> Options:
    """Return the options of a request; a stream always uses greedy search."""
    options = tuple(option for option in body.options if option[0] != "beam_size")
    return (*options, ("beam_size", 1)) if body.stream else body.options
