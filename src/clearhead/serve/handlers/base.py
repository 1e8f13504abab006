"""Base class of the request handlers, and the token counts that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel
from starlette.responses import Response

from clearhead.serve.http.errors import InvalidRequestError
from clearhead.serve.schemas import Options, RequestBody
from clearhead.serve.settings import Settings
from clearhead.tokenizers.base import TextTokenizer, Tokens

_TRUNCATE_ADVICE = "set truncate to true to cut it"
_CHARACTERS_PER_TOKEN = 4
"""Used to estimate the length of a text before it is tokenized."""
_MAX_COUNTED_TOKENS = 4096
"""The error message for a text over the model's limit counts at most this many tokens."""

Body = TypeVar("Body", bound=RequestBody)
PipelineT = TypeVar("PipelineT")


@dataclass(frozen=True)
class PreparedRequest:
    """Jobs of one request.

    Args:
        jobs: (payload, cost in tokens) for each input of `Handler.run`.
        options: keyword arguments of `Handler.run`. Only jobs with equal options share a batch.
        join: combines the results of the jobs into the results of the request. It may raise an InvalidRequestError.
    """

    jobs: list[tuple[Any, int]]
    options: Options = ()
    join: Callable[[list[Any]], list[Any]] = list


class Handler(ABC, Generic[Body, PipelineT]):
    """Handle the requests of one task with one model.

    Args:
        pipeline: the loaded model.
        settings: settings of the server.
    """

    task: ClassVar[str]
    """Name of the task, such as "embed"."""
    path: ClassVar[str]
    """Path of the route. Its last part names the operation in the API document."""
    description: ClassVar[str]
    """Description in the API document."""
    request_body: ClassVar[type[RequestBody]]
    """Schema of the request body."""
    response_body: ClassVar[type[BaseModel] | None]
    """Schema of the response body; None if `respond` returns a Response."""
    media_types: ClassVar[tuple[str, ...]] = ()
    """Content types of a response other than JSON."""
    pipeline_types: ClassVar[tuple[type, ...]]
    """Types of pipelines that support the task."""

    def __init__(self, pipeline: PipelineT, settings: Settings) -> None:
        self.pipeline, self.settings = pipeline, settings

    @abstractmethod
    def estimate(self, body: Body) -> int:
        """Estimate the cost of a request in tokens from its number of characters, to reject it before tokenizing.

        Raises:
            InvalidRequestError: the model does not support an option.
        """

    @abstractmethod
    def prepare(self, body: Body) -> PreparedRequest:
        """Validate a request and split it into jobs.

        A long input becomes several jobs, so that other requests can run between them.

        Raises:
            InvalidRequestError: the model cannot process an input, such as a text that is too long.
        """

    @abstractmethod
    def run(self, payloads: Sequence[Any], **options: Any) -> Sequence[Any]:
        """Compute jobs with the same options and return their results in order."""

    @abstractmethod
    def respond(self, body: Body, results: list[Any], num_tokens: int) -> BaseModel | Response:
        """Return the response to a request.

        Args:
            body: the request.
            results: joined results of its jobs.
            num_tokens: total cost of its jobs.
        """

    def accepts(self, body: Body) -> bool:
        """Return whether the model is suitable for a request that names no model."""
        return True

    def wants_stream(self, body: Body) -> bool:
        """Return whether a request asks for a stream of events."""
        return False

    def stream(self, body: Body) -> Iterator[dict[str, Any]]:
        """Yield the data of each event of a streamed result."""
        raise NotImplementedError(f"{self.task} does not support streams")


def estimate_tokens(texts: Sequence[str], limit: int | None = None) -> int:
    """Estimate the total number of tokens of texts, each truncated at a limit."""
    counts = [1 + len(text) // _CHARACTERS_PER_TOKEN for text in texts]
    return sum(counts) if limit is None else sum(min(count, limit) for count in counts)


def max_tokenized_length(limit: int | None, *, truncate: bool) -> int | None:
    """Return the maximum number of tokens of a tokenized text; None for no limit.

    Args:
        limit: maximum number of tokens of the model; None for no limit.
        truncate: whether longer texts are truncated. Otherwise their length is part of the error message.
    """
    return limit if truncate or limit is None else max(limit, _MAX_COUNTED_TOKENS)


def count_tokens(
    tokenizer: TextTokenizer, texts: Sequence[str], limit: int | None, *, truncate: bool, advice: str = _TRUNCATE_ADVICE
) -> list[int]:
    """Return the number of tokens of each text that the model sees.

    Args:
        tokenizer: the tokenizer of the model.
        texts: the texts.
        limit: maximum number of tokens of the model; None for no limit.
        truncate: whether longer texts are truncated.
        advice: how the client can fix a text that is too long.

    Raises:
        InvalidRequestError: a text is too long and `truncate` is False.
    """
    tokens = tokenizer.encode(texts, max_tokenized_length(limit, truncate=truncate))
    if not truncate:
        check_lengths(tokens, limit, advice)
    return [len(row.ids) if limit is None else min(len(row.ids), limit) for row in tokens]


def check_lengths(tokens: Sequence[Tokens], limit: int | None, advice: str = _TRUNCATE_ADVICE) -> None:
    """Raise an InvalidRequestError for the first text that exceeds a limit, with advice for the client."""
    for index, row in enumerate(tokens):
        if limit is not None and len(row.ids) > limit:
            count = f"more than {len(row.ids)}" if row.truncated else len(row.ids)
            raise InvalidRequestError(
                f"text {index}: the text has {count} tokens; this model takes at most {limit}; {advice}"
            )
