"""Handler for summaries of documents of any length."""

import math
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from pydantic import BaseModel

from clearhead.pipelines.summarizer import TASK, join_summaries
from clearhead.pipelines.text_to_text import TextToText
from clearhead.serve.handlers.base import PreparedRequest, count_tokens, estimate_tokens
from clearhead.serve.handlers.generation import GenerationHandler, GenerationRequest
from clearhead.serve.settings import Settings


class SummarizeRequest(GenerationRequest):
    """Documents to summarize, of any length."""


class SummaryOut(BaseModel):
    """Summary of a document, and the number of parts that were summarized separately."""

    text: str
    parts: int


class SummarizeResponse(BaseModel):
    """Summaries in the order of the documents."""

    model: str
    summaries: list[SummaryOut]


class SummarizeHandler(GenerationHandler[SummarizeRequest]):
    """Summarize documents, with the settings for summaries in the config.json of the checkpoint."""

    task = "summarize"
    path = "/summarize"
    description = "Summarize documents of any length."
    request_body = SummarizeRequest
    response_body = SummarizeResponse
    checkpoint_task = "summarization"

    def __init__(self, pipeline: TextToText, settings: Settings) -> None:
        super().__init__(pipeline.for_task(TASK) if TASK in pipeline.prompts.tasks else pipeline, settings)

    def estimate(self, body: SummarizeRequest) -> int:
        """Estimate the number of input and output tokens."""
        config = self.generation_config(body.texts, **dict(body.options))
        counts = [estimate_tokens([text]) for text in body.texts]
        return sum(self.cost(count, config, self._estimate_parts(count)) for count in counts)

    def prepare(self, body: SummarizeRequest) -> PreparedRequest:
        """Split each document into parts that the model can read. Each part becomes one job."""
        config = self.generation_config(body.texts, **dict(body.options))
        counts = count_tokens(self.pipeline.tokenizer, body.texts, None, truncate=True)
        self.check_generated_tokens(sum(map(self._estimate_parts, counts)), config)  # before the slow split
        documents = [self.pipeline.split_document(text) for text in body.texts]
        self.check_generated_tokens(sum(map(len, documents)), config)

        def join(outputs: list[Any]) -> list[Any]:
            remaining = iter(outputs)
            return [
                join_summaries(count, tuple(islice(remaining, len(parts))))
                for count, parts in zip(counts, documents, strict=True)
            ]

        return PreparedRequest(self.jobs(list(chain.from_iterable(documents)), config), body.options, join)

    def run(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """Return a `Generated` for each part."""
        return self.pipeline.generate(payloads, return_details=True, **options)

    def respond(self, body: SummarizeRequest, results: list[Any], num_tokens: int) -> SummarizeResponse:
        """Return the summary of each document."""
        summaries = [SummaryOut(text=summary.text, parts=len(summary.parts)) for summary in results]
        return SummarizeResponse(model=self.pipeline.name, summaries=summaries)

    def _estimate_parts(self, num_tokens: int) -> int:
        return max(1, math.ceil(num_tokens / (self.pipeline.max_length or num_tokens or 1)))
