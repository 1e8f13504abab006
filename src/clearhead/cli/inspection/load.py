"""A checkpoint to look at, whichever kind it is."""

from typing import TYPE_CHECKING

from clearhead.cli.text.translate import for_languages

if TYPE_CHECKING:
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.pipelines.text_to_text import TextToText


def load(
    model: str, source_lang: str | None, target_lang: str | None
) -> "tuple[TextEncoder | TextToText, str | None, str | None]":
    """A model in float32 on the CPU, set up for its languages, and the languages that it is still to be told.

    Raises:
        ValueError: no such model, one that is not understood, or an encoder that is told languages.
    """
    from clearhead.pipelines.auto import load_without_head
    from clearhead.pipelines.text_to_text import TextToText

    pipeline = load_without_head(model)
    if isinstance(pipeline, TextToText):
        return for_languages(pipeline, source_lang, target_lang)
    if source_lang is not None or target_lang is not None:
        raise ValueError(
            f"{model} is an encoder, which is told no languages: leave --source-lang and --target-lang out"
        )
    return pipeline, None, None
