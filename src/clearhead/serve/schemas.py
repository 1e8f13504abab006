"""What clients send and get, as the OpenAPI document tells it."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Options = tuple[tuple[str, Any], ...]
"""What requests have in common that are computed together."""


def _whole(given: Any) -> Any:
    """Numbers such as 5.0 as integers, which they are to a JSON schema; a list's too, but not those of lists in it."""
    if isinstance(given, list):
        return [int(one) if isinstance(one, float) and one.is_integer() else one for one in given]
    return int(given) if isinstance(given, float) and given.is_integer() else given


# a list's first error ends its validation: a body may hold a million of them
Integer = Annotated[int, BeforeValidator(_whole)]
Text = Annotated[str, Field(max_length=1_000_000)]
Called = Annotated[str, Field(max_length=200)]
"""A name, short enough to be repeated in an error."""
_Id = Annotated[int, Field(ge=0)]
Ids = Annotated[list[_Id], Field(min_length=1, max_length=100_000, fail_fast=True), BeforeValidator(_whole)]
TextList = Annotated[list[Text], Field(min_length=1, max_length=2048, fail_fast=True)]
IdLists = Annotated[list[Ids], Field(min_length=1, max_length=2048, fail_fast=True)]
_KEYS = 32
"""Most keys of a body; each that is unknown would be an error of its own."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank; a text is wanted")
    return text


Spoken = Annotated[str, AfterValidator(_not_blank), Field(json_schema_extra={"pattern": r"\S"})]


class RequestBody(BaseModel):
    """What every request body has."""

    # of JSON's types no other is taken for the one that is wanted
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, body: Any) -> Any:
        if isinstance(body, dict) and len(body) > _KEYS:
            raise ValueError(f"it has {len(body):,} fields; {len(cls.model_fields)} are known")
        return body


class EmbeddingsRequest(RequestBody):
    """As OpenAI's clients send it; `user` is taken and not used."""

    input: Annotated[
        Text | TextList | Ids | IdLists,
        Field(description="Texts, or token ids of this model with its special tokens, such as [CLS] and [SEP]."),
    ]
    model: Called
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    user: Text | None = None
    truncate: bool = Field(False, description="Cut what is longer than the model takes, in place of an error.")

    @property
    def texts(self) -> list[str]:
        """The texts, where it holds texts."""
        found = [self.input] if isinstance(self.input, str) else self.input
        return [one for one in found if isinstance(one, str)]

    @property
    def rows(self) -> list[list[int]]:
        """The token ids of each text, where it holds token ids."""
        if self.texts:
            return []
        rows: Any = [self.input] if isinstance(self.input[0], int) else self.input
        return list(rows)


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


class TextsRequest(RequestBody):
    """What requests have in common that are of one text or several."""

    text: Text | TextList
    model: Called | None = Field(None, description="A loaded model; by default the first that can.")

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.text] if isinstance(self.text, str) else self.text


class GenerationRequest(TextsRequest):
    """What translations and summaries have in common."""

    source_lang: Called | None = None
    target_lang: Called | None = None
    beam_size: Annotated[Integer, Field(ge=1, le=16)] | None = None
    max_new_tokens: Annotated[Integer, Field(ge=1, le=4096)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None

    @property
    def options(self) -> Options:
        """What is said of how to generate."""
        names = ("source_lang", "target_lang", "beam_size", "max_new_tokens", "length_penalty")
        return tuple((name, getattr(self, name)) for name in names if getattr(self, name) is not None)


class TranslateRequest(GenerationRequest):
    """Texts to translate."""

    truncate: bool = Field(False, description="Cut what is longer than the model takes, in place of an error.")
    stream: bool = Field(False, description="Tokens as server-sent events, of one text, greedily.")


class ViewRequest(RequestBody):
    """A text to look into."""

    text: Annotated[str, Field(min_length=1, max_length=2000)]
    model: Called | None = Field(None, description="A loaded model; by default the first that can.")


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


class AnswerRequest(RequestBody):
    """A question about a text of any length."""

    question: Annotated[Spoken, Field(max_length=10_000)]
    context: Annotated[Spoken, Field(max_length=1_000_000)]
    model: Called | None = Field(None, description="A loaded model; by default the first that can.")
    allow_no_answer: bool = False
    n_best: Annotated[Integer, Field(ge=1, le=20)] = 1


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


class ClassifyRequest(TextsRequest):
    """Texts to classify; what is longer than the model takes is cut if that is asked for."""

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
