"""Handler for searching an index."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from clearhead.retrieval.index import Index
from clearhead.serve.handlers.base import Handler, PreparedRequest, estimate_tokens
from clearhead.serve.http.errors import InvalidRequestError
from clearhead.serve.schemas import INTEGRAL, NonBlankText, OptionalModel, RequestBody
from clearhead.tokenizers.base import Tokens


class SearchRequest(RequestBody):
    """A query."""

    query: Annotated[NonBlankText, Field(max_length=10_000)]
    model: OptionalModel = None
    top_k: Annotated[int, Field(ge=1, le=1000, description="Number of documents."), INTEGRAL] = 10


class FoundDocument(BaseModel):
    """A document: its number in the index, its score, its text and its other columns."""

    index: int
    score: float
    text: str
    columns: dict[str, Any]


class SearchResponse(BaseModel):
    """Documents, highest score first."""

    model: str
    results: list[FoundDocument]


class SearchHandler(Handler[SearchRequest, Index]):
    """Search an index."""

    task = "search"
    path = "/search"
    description = "Find the documents of an index that match a query best."
    request_body = SearchRequest
    response_body = SearchResponse
    pipeline_types = (Index,)

    def estimate(self, body: SearchRequest) -> int:
        """Estimate the number of tokens of the query."""
        return estimate_tokens([body.query], self.pipeline.manifest.encoder["max_length"])

    def prepare(self, body: SearchRequest) -> PreparedRequest:
        """Tokenize the query, which becomes one job."""
        try:
            (tokens,) = self.pipeline.tokenize_queries([body.query])
        except ValueError as error:
            raise InvalidRequestError(str(error)) from None
        return PreparedRequest([(tokens, len(tokens.ids))], (("top_k", body.top_k),))

    def run(self, payloads: Sequence[Tokens], **options: Any) -> Sequence[Any]:
        """Return the rows and scores of each query."""
        found = self.pipeline.search_vectors(self.pipeline.encode_tokens(payloads), options["top_k"])
        return list(zip(found.rows.tolist(), found.scores.tolist(), strict=True))

    def respond(self, body: SearchRequest, results: list[Any], num_tokens: int) -> SearchResponse:
        """Return the documents of the rows."""
        ((rows, scores),) = results
        found = [self.pipeline.result(row, score) for row, score in zip(rows, scores, strict=True)]
        documents = [
            FoundDocument(index=one.index, score=one.score, text=one.text, columns=one.columns) for one in found
        ]
        return SearchResponse(model=self.pipeline.name, results=documents)
