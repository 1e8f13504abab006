"""Types and fields that several request schemas share, and the schemas of server information and errors."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Options = tuple[tuple[str, Any], ...]
"""Keyword arguments as hashable pairs."""


def _integral(value: Any) -> Any:
    """Convert numbers such as 5.0 to integers, as JSON Schema defines them; in a list, its direct items."""
    if isinstance(value, list):
        return [int(item) if isinstance(item, float) and item.is_integer() else item for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


# fail_fast: a list can hold a million items, so validation stops at the first error
INTEGRAL = BeforeValidator(_integral)
"""Put it after the bounds: before them, they would be missing in the OpenAPI document."""
Text = Annotated[str, Field(max_length=1_000_000)]
NonBlankText = Annotated[str, AfterValidator(_not_blank), Field(json_schema_extra={"pattern": r"\S"})]
ModelName = Annotated[str, Field(max_length=200)]
"""A name that is short enough to repeat in an error message."""
OptionalModel = Annotated[
    ModelName | None, Field(description="A loaded model. Default: the first that supports the task.")
]
Truncate = Annotated[
    bool, Field(description="Truncate texts that are longer than the model supports, instead of returning an error.")
]
MAX_INT = 2**31 - 1
"""Maximum of an integer whose real limit is that of the model."""
_TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
TokenIds = Annotated[list[_TokenId], Field(min_length=1, max_length=100_000, fail_fast=True), INTEGRAL]
TextList = Annotated[list[Text], Field(min_length=1, max_length=2048, fail_fast=True)]
TokenIdLists = Annotated[list[TokenIds], Field(min_length=1, max_length=2048, fail_fast=True)]
_MAX_FIELDS = 32
"""Maximum number of fields of a body. Each unknown field would add an error to the response."""


class RequestBody(BaseModel):
    """Base class of all request bodies."""

    # strict: a JSON string is never converted to a number, nor a number to a Boolean
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_field_count(cls, body: Any) -> Any:
        if isinstance(body, dict) and len(body) > _MAX_FIELDS:
            raise ValueError(f"the body has {len(body):,} fields; {len(cls.model_fields)} are known")
        return body


class TextsRequest(RequestBody):
    """One text or a list of texts."""

    text: Text | TextList
    model: OptionalModel = None

    @property
    def texts(self) -> list[str]:
        """The texts as a list."""
        return [self.text] if isinstance(self.text, str) else self.text


class ModelOut(BaseModel):
    """A loaded model and its tasks."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["clearhead"] = "clearhead"
    tasks: list[str]


class ModelsResponse(BaseModel):
    """All loaded models."""

    object: Literal["list"] = "list"
    data: list[ModelOut]


class Health(BaseModel):
    """Status of the server: alive, ready or loading."""

    status: str


class ErrorOut(BaseModel):
    """An error: a message for people, a type and a code for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """Body of every error response."""

    error: ErrorOut
    detail: Any = None
