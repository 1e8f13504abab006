"""Summaries of documents of any length."""

from dataclasses import dataclass
from typing import Unpack

from clearhead.generation.settings import GenerationOptions
from clearhead.run.generate import TextToText
from clearhead.run.outputs import Generated

TASK = "summarization"


@dataclass(frozen=True)
class Summary:
    """A document's summary.

    Args:
        text: the summaries of its parts, joined.
        tokens: how long the document is.
        parts: what was generated for each part; one where the document fits the model, none where it is empty.
    """

    text: str
    tokens: int
    parts: tuple[Generated, ...]


def summarize(
    model: TextToText,
    document: str,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **options: Unpack[GenerationOptions],
) -> Summary:
    """The summary of a document; one that is longer than the model is cut between sentences, each part summarised.

    Where the checkpoint describes how it summarises (T5's prefix, BART's lengths), that is what happens.

    Args:
        model: a model trained to summarise.
        document: the document.
        source_lang, target_lang, options: as in `TextToText.generate`.

    Raises:
        ValueError: as in `TextToText.generate`.

    >>> from clearhead.run.summarize import summarize
    """
    if TASK in model.prompts.tasks:
        model = model.for_task(TASK)
    (document_tokens,) = model.tokenizer.encode([document])
    parts = model.parts(document)
    outputs = tuple(
        model.generate(parts, source_lang=source_lang, target_lang=target_lang, return_details=True, **options)
    )
    text = " ".join(output.text.strip() for output in outputs if output.text.strip())
    return Summary(text, len(document_tokens.ids), outputs)
