"""Handler for text classification."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.serve.handlers.base import Handler, PreparedRequest, count_tokens, estimate_tokens, max_tokenized_length
from clearhead.serve.schemas import TextsRequest, Truncate


class ClassifyRequest(TextsRequest):
    """Texts to classify."""

    truncate: Truncate = False


class Label(BaseModel):
    """Most probable label of a text, and the probabilities of all labels."""

    label: str
    score: float
    scores: dict[str, float]


class ClassifyResponse(BaseModel):
    """Labels in the order of the texts."""

    model: str
    classifications: list[Label]


class ClassifyHandler(Handler[ClassifyRequest, TextClassifier]):
    """Classify texts."""

    task = "classify"
    path = "/classify"
    description = "Classify texts."
    request_body = ClassifyRequest
    response_body = ClassifyResponse
    pipeline_types = (TextClassifier,)

    def estimate(self, body: ClassifyRequest) -> int:
        """Estimate the number of input tokens."""
        return estimate_tokens(body.texts, max_tokenized_length(self.pipeline.max_length, truncate=body.truncate))

    def prepare(self, body: ClassifyRequest) -> PreparedRequest:
        """Count the tokens of each text. Each text becomes one job."""
        pipeline = self.pipeline
        counts = count_tokens(pipeline.tokenizer, body.texts, pipeline.max_length, truncate=body.truncate)
        return PreparedRequest(list(zip(body.texts, counts, strict=True)))

    def run(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """Return a `Classification` for each text."""
        return list(self.pipeline.classify(payloads))

    def respond(self, body: ClassifyRequest, results: list[Any], num_tokens: int) -> ClassifyResponse:
        """Return the label and the probabilities of each text."""
        labels = [Label(label=one.label, score=one.probability, scores=one.probabilities) for one in results]
        return ClassifyResponse(model=self.pipeline.name, classifications=labels)
