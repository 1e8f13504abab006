"""Handler for embeddings of texts or token ids."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.vectors import EncodeOptions
from clearhead.serve.handlers.base import Handler, PreparedRequest, check_lengths, estimate_tokens, max_tokenized_length
from clearhead.serve.http.errors import InvalidRequestError
from clearhead.serve.schemas import (
    INTEGRAL,
    MAX_INT,
    ModelName,
    RequestBody,
    Text,
    TextList,
    TokenIdLists,
    TokenIds,
    Truncate,
)
from clearhead.tokenizers.base import Tokens


class EmbeddingsRequest(RequestBody):
    """Request of OpenAI's embeddings API. `user` is accepted and ignored."""

    input: Annotated[
        Text | TextList | TokenIds | TokenIdLists,
        Field(description="Texts, or token ids of this model with its special tokens, such as [CLS] and [SEP]."),
    ]
    model: ModelName
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=MAX_INT), INTEGRAL] | None = None
    user: Text | None = None
    truncate: Truncate = False

    @property
    def texts(self) -> list[str]:
        """The input texts; empty if the input is token ids."""
        items = [self.input] if isinstance(self.input, str) else self.input
        return [item for item in items if isinstance(item, str)]

    @property
    def token_ids(self) -> list[list[int]]:
        """The token ids of each input; empty if the input is text."""
        if self.texts:
            return []
        rows: Any = [self.input] if isinstance(self.input[0], int) else self.input
        return list(rows)


class Embedding(BaseModel):
    """Embedding of one input: a list of numbers, or its float32 bytes (little-endian) in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Number of tokens that were processed."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """Embeddings in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class EmbedHandler(Handler[EmbeddingsRequest, TextEncoder]):
    """Embed texts or token ids."""

    task = "embed"
    path = "/v1/embeddings"
    description = "Embed texts or token ids, in the format of OpenAI's API."
    request_body = EmbeddingsRequest
    response_body = EmbeddingsResponse
    pipeline_types = (TextEncoder,)

    @property
    def _max_length(self) -> int:
        return int(self.pipeline.settings.max_length or self.pipeline.model.config.max_len)

    def estimate(self, body: EmbeddingsRequest) -> int:
        """Estimate the number of input tokens."""
        width = self.pipeline.width()
        if body.dimensions is not None and body.dimensions > width:
            raise InvalidRequestError(f"dimensions is {body.dimensions}; this model's vectors have {width} dimensions")
        limit = self._max_length
        num_tokens = estimate_tokens(body.texts, max_tokenized_length(limit, truncate=body.truncate))
        return num_tokens + sum(min(len(ids), limit) for ids in body.token_ids)

    def prepare(self, body: EmbeddingsRequest) -> PreparedRequest:
        """Tokenize the texts, or check the token ids. Each input becomes one job."""
        texts, rows = body.texts, body.token_ids
        vocab_size, special_ids = self.pipeline.model.config.vocab_size, self.pipeline.tokenizer.special_ids
        if any(token_id >= vocab_size for row in rows for token_id in row):
            raise InvalidRequestError(f"input: token ids must be in the range 0 to {vocab_size - 1}")
        if body.truncate:
            tokens = self.pipeline.tokenize(texts)
            rows = [_truncate(row, self._max_length, special_ids) for row in rows]
        else:
            # beyond the model's limit, so that the error can state the real length
            prompt = self.pipeline.settings.prompt_text(None)
            length = max_tokenized_length(self._max_length, truncate=False)
            tokens = self.pipeline.tokenizer.encode([prompt + text for text in texts], length)
        tokens += [Tokens(row, truncated=False) for row in rows]
        check_lengths(tokens, self._max_length)
        options = (("truncate_dim", body.dimensions),) if body.dimensions else ()
        return PreparedRequest([(row, len(row.ids)) for row in tokens], options)

    def run(self, payloads: Sequence[Tokens], **options: Any) -> Sequence[Any]:
        """Compute a vector for each input."""
        return list(np.asarray(self.pipeline.encode_tokens(payloads, EncodeOptions(**options))))

    def respond(self, body: EmbeddingsRequest, results: list[Any], num_tokens: int) -> EmbeddingsResponse:
        """Return the vectors in the requested encoding."""
        return EmbeddingsResponse(
            data=[
                Embedding(index=index, embedding=_encode_vector(vector, body.encoding_format))
                for index, vector in enumerate(results)
            ],
            model=self.pipeline.name,
            usage=Usage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )


def _truncate(row: list[int], limit: int, special_ids: frozenset[int]) -> list[int]:
    """Truncate token ids as the tokenizer does: a special token at the end is kept."""
    if len(row) <= limit:
        return row
    return [*row[: limit - 1], row[-1]] if row[-1] in special_ids else row[:limit]


def _encode_vector(vector: np.ndarray, encoding: str) -> list[float] | str:
    if encoding == "float":
        return [float(value) for value in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
