"""Summarize documents of any length."""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

from clearhead.finite import error_context
from clearhead.generation.config import GenerationOptions, show_generation_options
from clearhead.pipelines.seq2seq.outputs import Generated
from clearhead.pipelines.text_to_text import TextToText

TASK = "summarization"


@dataclass(frozen=True)
class Summary:
    """The summary of a document.

    Args:
        text: the summaries of its parts, joined.
        tokens: number of tokens of the document.
        parts: the output for each part: one if the document fits the model, none if it is empty.
    """

    text: str
    tokens: int
    parts: tuple[Generated, ...]


@show_generation_options
def summarize(
    model: TextToText,
    document: str,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **options: Unpack[GenerationOptions],
) -> Summary:
    """Summarize a document. A document that is longer than the model's limit is summarized in parts.

    The document is split between sentences. If the checkpoint describes the task (T5's prefix, BART's lengths), its
    options are used.

    Args:
        model: a model trained for summarization.
        document: the document.
        source_lang, target_lang, options: as in `TextToText.generate`.

    Raises:
        ValueError: as in `TextToText.generate`.

    >>> from clearhead.pipelines.summarizer import summarize
    """
    (summary,) = summaries(model, [document], source_lang=source_lang, target_lang=target_lang, **options)
    return summary


@show_generation_options
def summaries(
    model: TextToText,
    documents: Sequence[str],
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **options: Unpack[GenerationOptions],
) -> Iterator[Summary]:
    """Summarize each document as `summarize`, in order; documents are computed together.

    Args: as in `summarize`.

    Raises:
        ValueError: as in `TextToText.generate`, when the first summary is requested.
        NonFiniteError: as in `TextToText.generate`; its index is the document's, its text the part's.
    """
    if TASK in model.prompts.tasks:
        model = model.for_task(TASK)
    lengths = [len(tokens.ids) for tokens in model.tokenizer.encode(documents)]
    parts = [model.split_document(document) for document in documents]
    all_parts = itertools.chain.from_iterable(parts)
    outputs = model.generate_iter(all_parts, source_lang=source_lang, target_lang=target_lang, **options)
    ends = list(itertools.accumulate(map(len, parts)))
    for length, own_parts in zip(lengths, parts, strict=True):
        with error_context(index=lambda part: bisect.bisect_right(ends, part)):
            own_outputs = tuple(itertools.islice(outputs, len(own_parts)))
        yield join_summaries(length, own_outputs)


def join_summaries(tokens: int, parts: tuple[Generated, ...]) -> Summary:
    """Return the summary of a document.

    Args:
        tokens: number of tokens of the document.
        parts: the output for each of its parts.
    """
    return Summary(" ".join(part.text.strip() for part in parts if part.text.strip()), tokens, parts)
