"""Load an encoder or encoder–decoder to inspect."""

from typing import TYPE_CHECKING

from clearhead.cli.text.translate import for_languages

if TYPE_CHECKING:
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.pipelines.text_to_text import TextToText


def load(
    model: str, source_lang: str | None, target_lang: str | None
) -> "tuple[TextEncoder | TextToText, str | None, str | None]":
    """Load a model in float32 on the CPU, and return it with the languages to pass with each text.

    Raises:
        ValueError: the model is missing or not supported, or languages are given for an encoder.
    """
    from clearhead.pipelines.auto import load_without_head
    from clearhead.pipelines.text_to_text import TextToText

    pipeline = load_without_head(model)
    if isinstance(pipeline, TextToText):
        return for_languages(pipeline, source_lang, target_lang)
    if source_lang is not None or target_lang is not None:
        raise ValueError(f"{model} is an encoder; --source-lang and --target-lang are only for encoder–decoders")
    return pipeline, None, None
