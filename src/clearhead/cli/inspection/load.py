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
    from clearhead.checkpoints import is_seq2seq
    from clearhead.io import hub
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.pipelines.text_to_text import TextToText

    if is_seq2seq(hub.resolve_model(model)):
        made = TextToText.from_pretrained(model, precision="float32", device="cpu")
        return for_languages(made, source_lang, target_lang)
    if source_lang is not None or target_lang is not None:
        raise ValueError(
            f"{model} is an encoder, which is told no languages: leave --source-lang and --target-lang out"
        )
    return TextEncoder.from_pretrained(model, precision="float32", device="cpu"), None, None
