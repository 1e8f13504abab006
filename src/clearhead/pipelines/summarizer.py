"""Summaries of documents of any length."""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

from clearhead.finite import naming
from clearhead.generation.config import GenerationOptions
from clearhead.pipelines.outputs import Generated
from clearhead.pipelines.text_to_text import TextToText

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

    >>> from clearhead.pipelines.summarizer import summarize
    """
    (summary,) = summaries(model, [document], source_lang=source_lang, target_lang=target_lang, **options)
    return summary


def summaries(
    model: TextToText,
    documents: Sequence[str],
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **options: Unpack[GenerationOptions],
) -> Iterator[Summary]:
    """The summary of each document, as `summarize` makes it, in their order; documents are computed together.

    Args: as in `summarize`.

    Raises:
        ValueError: as in `TextToText.generate`, when the first summary is asked for.
        NonFiniteError: as there; its index is the document's, its text the part's.
    """
    if TASK in model.prompts.tasks:
        model = model.for_task(TASK)
    lengths = [len(tokens.ids) for tokens in model.tokenizer.encode(documents)]
    parts = [model.parts(document) for document in documents]
    every = itertools.chain.from_iterable(parts)
    outputs = model.each(every, source_lang=source_lang, target_lang=target_lang, **options)
    ends = list(itertools.accumulate(map(len, parts)))
    for length, some in zip(lengths, parts, strict=True):
        with naming(index=lambda part: bisect.bisect_right(ends, part)):
            outputs_of_parts = tuple(itertools.islice(outputs, len(some)))
        yield joined(length, outputs_of_parts)


def joined(tokens: int, parts: tuple[Generated, ...]) -> Summary:
    """The summary of a document of so many tokens, from what was generated for each of its parts."""
    return Summary(" ".join(part.text.strip() for part in parts if part.text.strip()), tokens, parts)
