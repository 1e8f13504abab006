"""Base class of the handlers that generate text."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from clearhead.generation.config import GenerationConfig
from clearhead.pipelines.text_to_text import TextToText
from clearhead.serve.handlers.base import Body, Handler, count_tokens
from clearhead.serve.http.errors import InvalidRequestError
from clearhead.serve.schemas import INTEGRAL, ModelName, Options, TextsRequest


class GenerationRequest(TextsRequest):
    """Texts, with options of the generation."""

    source_lang: ModelName | None = None
    target_lang: ModelName | None = None
    beam_size: Annotated[int, Field(ge=1, le=16), INTEGRAL] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=4096), INTEGRAL] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None

    @property
    def options(self) -> Options:
        """The options that the request sets, as keyword arguments of `TextToText.generate`."""
        names = ("source_lang", "target_lang", "beam_size", "max_new_tokens", "length_penalty")
        return tuple((name, getattr(self, name)) for name in names if getattr(self, name) is not None)


class GenerationHandler(Handler[Body, TextToText]):
    """Generate text with an encoder–decoder."""

    pipeline_types = (TextToText,)
    checkpoint_task: ClassVar[str | None] = None
    """Prefix of the names in task_specific_params of config.json that enables the task by default."""

    @classmethod
    def is_default(cls, pipeline: TextToText) -> bool:
        """Return whether the config.json of a checkpoint lists the task."""
        prefix = cls.checkpoint_task
        return prefix is not None and any(task.startswith(prefix) for task in pipeline.prompts.tasks)

    def generation_config(self, texts: Sequence[str], **options: Any) -> GenerationConfig:
        """Return the generation config for texts with the options of a request.

        Raises:
            InvalidRequestError: the model does not support an option.
        """
        try:
            config = self.pipeline.generation_config_for(texts, **options)
            self.max_new_tokens(config)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from None
        return config

    def max_new_tokens(self, config: GenerationConfig) -> int:
        """Return the maximum number of tokens of an output."""
        return config.max_target_length(1, self.pipeline.model.config.max_len) - 1

    def cost(self, num_tokens: int, config: GenerationConfig, parts: int = 1) -> int:
        """Return the number of tokens of a text plus the tokens that its beams are expected to generate.

        Outputs are rarely more than twice as long as their source.
        """
        return num_tokens + config.beam_size * min(parts * self.max_new_tokens(config), 2 * num_tokens + 16)

    def jobs(self, texts: Sequence[str], config: GenerationConfig, *, truncate: bool = True) -> list[tuple[str, int]]:
        """Return each text with its cost.

        Raises:
            InvalidRequestError: a text is too long and `truncate` is False.
        """
        counts = count_tokens(self.pipeline.tokenizer, texts, self.pipeline.max_length, truncate=truncate)
        return [(text, self.cost(count, config)) for text, count in zip(texts, counts, strict=True)]

    def check_generated_tokens(self, outputs: int, config: GenerationConfig) -> None:
        """Raise an InvalidRequestError if a request could generate more tokens than the server allows."""
        beams, length, limit = config.beam_size, self.max_new_tokens(config), self.settings.max_generated_tokens
        if outputs * beams * length > limit:
            raise InvalidRequestError(
                f"{outputs} outputs of up to {length} tokens with {beams} beams are {outputs * beams * length:,} "
                f"tokens; this server generates at most {limit:,} for a request: "
                "send fewer texts, or a smaller max_new_tokens or beam_size"
            )
