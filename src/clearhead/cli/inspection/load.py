"""Load an encoder or encoder–decoder to inspect."""

from typing import TYPE_CHECKING, TypeVar

from clearhead.cli.text.translate import for_languages

if TYPE_CHECKING:
    from clearhead.pipelines.text_classifier import TextClassifier
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.pipelines.text_to_text import TextToText

Pipeline = TypeVar("Pipeline")


def load(
    model: str, source_lang: str | None, target_lang: str | None
) -> "tuple[TextEncoder | TextToText, str | None, str | None]":
    """Load a model in float32 on the CPU, and return it with the languages to pass with each text.

    Raises:
        ValueError: the model is missing or not supported, or languages are given for an encoder.
    """
    from clearhead.pipelines.auto import load_without_head

    return _with_languages(model, load_without_head(model), source_lang, target_lang)


def load_with_head(
    model: str, source_lang: str | None, target_lang: str | None
) -> "tuple[TextEncoder | TextToText | TextClassifier, str | None, str | None]":
    """Load a model as `load`, except that a classifier keeps its head."""
    from clearhead.pipelines.auto import load_to_inspect

    return _with_languages(model, load_to_inspect(model), source_lang, target_lang)


def _with_languages(
    model: str, pipeline: Pipeline, source_lang: str | None, target_lang: str | None
) -> "tuple[Pipeline | TextToText, str | None, str | None]":
    from clearhead.pipelines.text_to_text import TextToText

    if isinstance(pipeline, TextToText):
        return for_languages(pipeline, source_lang, target_lang)
    if source_lang is not None or target_lang is not None:
        raise ValueError(f"{model} is an encoder; --source-lang and --target-lang are only for encoder–decoders")
    return pipeline, None, None
