"""Load a checkpoint of any type for inspection."""

from typing import TYPE_CHECKING

from clearhead.cli.text.translate import for_languages

if TYPE_CHECKING:
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.pipelines.text_to_text import TextToText


def load(
    model: str, source_lang: str | None, target_lang: str | None
) -> "tuple[TextEncoder | TextToText, str | None, str | None]":
    """Load a model in float32 on the CPU, and return it with the languages to pass to it.

    Raises:
        ValueError: the model does not exist or is not supported, or languages are given for an encoder.
    """
    from clearhead.pipelines.auto import load_without_head
    from clearhead.pipelines.text_to_text import TextToText

    pipeline = load_without_head(model)
    if isinstance(pipeline, TextToText):
        return for_languages(pipeline, source_lang, target_lang)
    if source_lang is not None or target_lang is not None:
        raise ValueError(f"{model} is an encoder, which has no languages: remove --source-lang and --target-lang")
    return pipeline, None, None
