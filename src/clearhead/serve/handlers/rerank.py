"""Handler for reranking, in the shape of Cohere's and Jina's APIs."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from clearhead.pipelines.reranker import Reranker
from clearhead.serve.handlers.base import Handler, PreparedRequest, estimate_tokens
from clearhead.serve.handlers.embed import Usage
from clearhead.serve.http.errors import InvalidRequestError
from clearhead.serve.schemas import INTEGRAL, MAX_INT, NonBlankText, OptionalModel, RequestBody, Text
from clearhead.tokenizers.base import PairTokens


class TextDocument(BaseModel):
    """A document as an object with a text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text


def _text_of(document: str | TextDocument) -> str:
    return document if isinstance(document, str) else document.text


def _check_documents(documents: list[str | TextDocument]) -> list[str | TextDocument]:
    for number, document in enumerate(documents):
        if not _text_of(document).strip():
            raise ValueError(f"document {number} is blank; expected words")
    return documents


class RerankRequest(RequestBody):
    """A query and the documents to rank."""

    query: Annotated[NonBlankText, Field(max_length=10_000)]
    documents: Annotated[
        list[Text | TextDocument],
        Field(min_length=1, max_length=2048, fail_fast=True, description="Texts, or objects with a text."),
        AfterValidator(_check_documents),
    ]
    model: OptionalModel = None
    top_n: (
        Annotated[int, Field(ge=1, le=MAX_INT, description="Number of documents to return. Default: all."), INTEGRAL]
        | None
    ) = None
    return_documents: Annotated[bool, Field(description="Repeat the text of each document in its result.")] = False
    truncate: Annotated[
        bool, Field(description="Truncate documents that are too long for the model, instead of returning an error.")
    ] = True

    @property
    def texts(self) -> list[str]:
        """The documents as texts."""
        return [_text_of(document) for document in self.documents]


class RerankedDocument(BaseModel):
    """A document of the ranking: its index in the request, its score and, if requested, its text."""

    index: int
    relevance_score: float
    document: Annotated[TextDocument | SkipJsonSchema[None], Field(exclude_if=lambda value: value is None)] = None


class RerankResponse(BaseModel):
    """Documents, most relevant first."""

    model: str
    results: list[RerankedDocument]
    usage: Usage


class RerankHandler(Handler[RerankRequest, Reranker]):
    """Rank documents by their relevance to a query."""

    task = "rerank"
    path = "/v1/rerank"
    description = "Rank documents by their relevance to a query. Requests are those of Cohere's and Jina's APIs."
    request_body = RerankRequest
    response_body = RerankResponse
    pipeline_types = (Reranker,)

    def estimate(self, body: RerankRequest) -> int:
        """Estimate the number of tokens of all pairs."""
        return estimate_tokens([body.query + text for text in body.texts], self.pipeline.max_length)

    def prepare(self, body: RerankRequest) -> PreparedRequest:
        """Tokenize the pairs of the query and each document. Each pair becomes one job."""
        try:
            self.pipeline.check_query(body.query)
            tokens = self.pipeline.tokenize([(body.query, text) for text in body.texts])
        except ValueError as error:
            raise InvalidRequestError(str(error)) from None
        truncated = [number for number, pair in enumerate(tokens) if pair.truncated]
        if truncated and not body.truncate:
            raise InvalidRequestError(
                f"document {truncated[0]} is too long: with the query it has more than {self.pipeline.max_length} "
                "tokens; set truncate to true to cut it"
            )
        return PreparedRequest([(pair, len(pair.ids)) for pair in tokens])

    def run(self, payloads: Sequence[PairTokens], **options: Any) -> Sequence[Any]:
        """Return the score of each pair."""
        return list(self.pipeline.score_tokens(payloads)[:, 0].tolist())

    def respond(self, body: RerankRequest, results: list[Any], num_tokens: int) -> RerankResponse:
        """Return the documents with the highest scores, highest first."""
        texts = body.texts
        ranked = sorted(range(len(results)), key=lambda index: -results[index])[: body.top_n]
        return RerankResponse(
            model=self.pipeline.name,
            results=[
                RerankedDocument(
                    index=index,
                    relevance_score=results[index],
                    document=TextDocument(text=texts[index]) if body.return_documents else None,
                )
                for index in ranked
            ],
            usage=Usage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )
