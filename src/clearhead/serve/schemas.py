"""What clients send and get, as the OpenAPI document tells it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=1_000_000)]
Ids = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1, max_length=100_000)]
Texts = Text | Annotated[list[Text], Field(min_length=1, max_length=2048)]


class Asked(BaseModel):
    """What every request body has."""

    model_config = ConfigDict(extra="forbid")


class EmbeddingsRequest(Asked):
    """As OpenAI's clients send it; `user` is taken and not used."""

    input: Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=2048)]
    model: Text
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Text | None = None
    truncate: bool = Field(False, description="Cut what is longer than the model takes, in place of an error.")


class Embedding(BaseModel):
    """A text's vector: numbers, or the base64 of their float32 bytes, the lowest first."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """How many tokens were computed."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """The vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class GenerationRequest(Asked):
    """What translations and summaries have in common."""

    text: Texts
    model: Text | None = Field(None, description="A loaded model; by default the first that can.")
    source_lang: Text | None = None
    target_lang: Text | None = None
    beam_size: Annotated[int, Field(ge=1, le=16)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=4096)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None


class TranslateRequest(GenerationRequest):
    """Texts to translate."""

    truncate: bool = Field(False, description="Cut what is longer than the model takes, in place of an error.")
    stream: bool = Field(False, description="Tokens as server-sent events, of one text, greedily.")


class ViewRequest(Asked):
    """A text to look into."""

    text: Annotated[str, Field(min_length=1, max_length=2000)]
    model: Text | None = Field(None, description="A loaded model; by default the first that can.")


class Translation(BaseModel):
    """A text's translation."""

    text: str
    score: float


class TranslateResponse(BaseModel):
    """The translations, in the order of the texts."""

    model: str
    translations: list[Translation]


class SummarizeRequest(GenerationRequest):
    """Documents to summarise, of any length."""


class SummaryOut(BaseModel):
    """A document's summary, of so many parts."""

    text: str
    parts: int


class SummarizeResponse(BaseModel):
    """The summaries, in the order of the documents."""

    model: str
    summaries: list[SummaryOut]


class AnswerRequest(Asked):
    """A question about a text of any length."""

    question: Annotated[str, Field(min_length=1, max_length=10_000)]
    context: Annotated[str, Field(min_length=1, max_length=1_000_000)]
    model: Text | None = Field(None, description="A loaded model; by default the first that can.")
    allow_no_answer: bool = False
    n_best: Annotated[int, Field(ge=1, le=20)] = 1


class AnswerOut(BaseModel):
    """An answer, with where it stands in the context, if it does."""

    text: str
    score: float
    start: int | None
    end: int | None


class AnswerResponse(BaseModel):
    """The answers, best first."""

    model: str
    answers: list[AnswerOut]


class ClassifyRequest(Asked):
    """Texts to classify; what is longer than the model takes is cut if that is asked for."""

    text: Texts
    model: Text | None = Field(None, description="A loaded model; by default the first that can.")
    truncate: bool = Field(False, description="Cut what is longer than the model takes, in place of an error.")


class Label(BaseModel):
    """A text's label, and the probability of each."""

    label: str
    score: float
    scores: dict[str, float]


class ClassifyResponse(BaseModel):
    """The labels, in the order of the texts."""

    model: str
    classifications: list[Label]


class ModelOut(BaseModel):
    """A loaded model, and what it can do."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["clearhead"] = "clearhead"
    uses: list[str]


class ModelsResponse(BaseModel):
    """All that are loaded."""

    object: Literal["list"] = "list"
    data: list[ModelOut]


class Health(BaseModel):
    """Whether the server lives, or is ready."""

    status: str


class ErrorOut(BaseModel):
    """What was wrong: for people, and for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """Every error has this body."""

    error: ErrorOut
    detail: Any = None
