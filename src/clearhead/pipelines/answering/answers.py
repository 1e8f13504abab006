"""Answers to questions, and the interface of the models that find them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """An answer to a question about a context.

    Args:
        text: the answer, context[start:end]; "" if the context has no answer.
        score: its probability, from 0 to 1, among all spans of its window of the context.
        start, end: its position in the context, in characters. None if the context has no answer, or if a generative
            model wrote an answer that does not occur in the context.
        n_best: all requested answers, best first, including this one; () if only one was requested.

    >>> from clearhead import Answer
    >>> Answer("The old bridge", 0.9, 0, 14).text
    'The old bridge'
    """

    text: str
    score: float
    start: int | None
    end: int | None
    n_best: "tuple[Answer, ...]" = ()


class EmptyContextError(ValueError):
    """A context contains nothing that the model's tokenizer recognizes as text."""


@dataclass(frozen=True)
class SpanSearchConfig:
    """Options of the search for an answer, as in `BaseQuestionAnswerer.answer`.

    Raises:
        ValueError: an option out of range.
    """

    n_best: int
    allow_no_answer: bool
    no_answer_threshold: float
    max_answer_length: int
    max_length: int
    stride: int

    def __post_init__(self) -> None:
        for name, minimum in (("n_best", 1), ("max_answer_length", 1), ("stride", 0)):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} must be at least {minimum}; got {getattr(self, name)}")
        if math.isnan(self.no_answer_threshold):
            raise ValueError("no_answer_threshold is a number; got nan")


class BaseQuestionAnswerer(ABC):
    """Interface of the models that answer questions about a context."""

    @abstractmethod
    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that transformers opens, with the weights in float32."""

    def answer(
        self,
        question: str,
        context: str,
        *,
        n_best: int = 1,
        allow_no_answer: bool = False,
        no_answer_threshold: float = 0.0,
        max_answer_length: int = 30,
        max_length: int | None = None,
        stride: int = 128,
    ) -> Answer:
        """Return the part of the context that answers the question.

        A context that is longer than the model's limit is read in overlapping windows, and the most probable span of
        all windows is the answer. A span that occurs in two windows counts once, with the better score.

        Args:
            question: the question.
            context: a text of any length.
            n_best: number of answers in the result's `n_best`, best first; there may be fewer.
            allow_no_answer: whether "no answer" is a possible result. Only models trained for it (SQuAD 2.0's) can
                decide this, and no checkpoint says whether its model was.
            no_answer_threshold: the result is "no answer" if ln P(none) − ln P(best span) is above this. P(none) is
                the minimum over all windows. In a single window this is a difference of logits, τ in Section 4.3.
            max_answer_length: maximum number of tokens in an answer.
            max_length: number of tokens in a window, including the question and special tokens; None for 384, or the
                model's limit if that is less.
            stride: number of context tokens that neighboring windows share, up to half of a window's.

        Raises:
            ValueError: an empty question or context, a question that leaves no room for its context, or an option out
                of range.
        """
        (answer,) = self.answers(
            [(question, context)],
            n_best=n_best,
            allow_no_answer=allow_no_answer,
            no_answer_threshold=no_answer_threshold,
            max_answer_length=max_answer_length,
            max_length=max_length,
            stride=stride,
        )
        return answer

    @abstractmethod
    def answers(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        n_best: int = 1,
        allow_no_answer: bool = False,
        no_answer_threshold: float = 0.0,
        max_answer_length: int = 30,
        max_length: int | None = None,
        stride: int = 128,
        batch_tokens: int | None = None,
        show_progress: bool = False,
    ) -> list[Answer]:
        """Return the answer to each question from its own context, in the order of the pairs.

        Args:
            pairs: questions with their contexts.
            batch_tokens: number of tokens in a batch; None for the default of the device.
            show_progress: show a progress bar on standard error.
            n_best, allow_no_answer, no_answer_threshold, max_answer_length, max_length, stride: as in `answer`.

        Raises:
            ValueError: as in `answer`; the message names the pair, counted from 0.
            NonFiniteError: the outputs for a pair hold NaN or infinity; its index and text are the question's.
        """
