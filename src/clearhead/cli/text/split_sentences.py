"""Translate texts sentence by sentence, for models that were trained on single sentences."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from clearhead.data.sentences import sentences

if TYPE_CHECKING:
    from clearhead.pipelines.seq2seq.outputs import Generated

OnBatch = Callable[[int, int], object]


@dataclass(frozen=True)
class Translation:
    """The translation of a text.

    Args:
        text: the translations of its sentences, joined.
        parts: the output for each sentence; one, which is empty, for an empty text.
    """

    text: str
    parts: "tuple[Generated, ...]"


class Sentences:
    """The sentences of texts, in order; the texts are read once.

    Args:
        texts: the texts.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self._ends: list[int] = []  # number of sentences up to the end of each text

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            parts = sentences(text) or [""]
            self._ends.append((self._ends[-1] if self._ends else 0) + len(parts))
            yield from parts

    def text_of(self, sentence: int) -> int:
        """Return the number of the text of a sentence that was read, both from 0."""
        return bisect_right(self._ends, sentence)

    def count_texts(self, on_batch: OnBatch) -> OnBatch:
        """Return a function that takes the sentences of each batch and reports how many texts they complete."""
        done = reported = 0

        def on_sentences(count: int, tokens: int) -> None:
            nonlocal done, reported
            done += count
            complete = self.text_of(done)
            on_batch(complete - reported, tokens)
            reported = complete

        return on_sentences

    def join(self, outputs: "Iterator[Generated]") -> Iterator[Translation]:
        """Yield the translation of each text from the outputs for the sentences."""
        start = number = 0
        for first in outputs:
            end = self._ends[number]
            parts = (first, *islice(outputs, end - start - 1))
            yield Translation(" ".join(part.text for part in parts if part.text), parts)
            start, number = end, number + 1
