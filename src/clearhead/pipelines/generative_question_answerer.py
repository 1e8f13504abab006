"""Questions answered by generating: the reading of encoder–decoders such as T5."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from clearhead.finite import naming
from clearhead.pipelines.outputs import Generated
from clearhead.pipelines.question_answerer import Answer, QuestionAnswerer, SpanSearchConfig
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.progress import token_progress
from clearhead.tokenizers.question_context import ContextOverflowError


class GenerativeQuestionAnswerer(QuestionAnswerer):
    """An encoder–decoder that reads a question with its context and writes the answer.

    Source: Raffel et al. 2020, "T5", Appendix D.15: the source is "question: … context: …"

    Args:
        generator: the model.

    An answer's score is the geometric mean of its tokens' probabilities; start and end are there where its words stand
    in the context.

    >>> from clearhead import QuestionAnswerer
    >>> QuestionAnswerer.from_pretrained("my-t5").answer("What was closed?", "The bridge was.").text  # doctest: +SKIP
    'the bridge'
    """

    def __init__(self, generator: TextToText) -> None:
        self.generator = generator

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that transformers opens, with the weights in float32."""
        self.generator.save_pretrained(folder)

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
        """The answer to each question from its own context, in the order of the pairs.

        A context that is too long for the model is cut between sentences, and the most probable answer to any part is
        given. That there is none is for the model to say, by an empty answer.

        Args:
            pairs: questions with their contexts.
            n_best, max_answer_length, max_length, show_progress: as in `QuestionAnswerer.answers`.
            allow_no_answer: whether an empty answer counts; where not, the best one with words is given, if any.
            no_answer_threshold, stride, batch_tokens: of extractive models; nothing here depends on them.

        Raises:
            ValueError, NonFiniteError: as in `QuestionAnswerer.answers`.
        """
        SpanSearchConfig(
            n_best, allow_no_answer, no_answer_threshold, max_answer_length, max_length or 1, stride
        )  # are checked
        found: list[Answer] = []
        total = len(pairs) if isinstance(pairs, Sequence) else None
        with token_progress(total, show_progress) as advance:
            for number, (question, context) in enumerate(pairs):
                sources = self._sources(question, context, max_length, number)
                pair, asked = [number] * len(sources), [question] * len(sources)
                with naming(index=pair.__getitem__, text=asked.__getitem__):
                    outputs = self._written(sources, n_best, max_answer_length)
                found.append(best_answer(outputs, context, n_best, allow_no_answer))
                advance(1, sum(len(output.token_ids) for output in outputs))
        return found

    def _sources(self, question: str, context: str, max_length: int | None, number: int) -> list[str]:
        """What the model reads: the question with each part of the context."""
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise ValueError(f"pair {number}: the {name} is empty")
        try:
            return self.generator.parts(context, f"question: {question} context: ", max_length)
        except ContextOverflowError as error:
            raise ContextOverflowError(f"pair {number}: the question is too long: {error}") from None

    def _written(self, sources: Sequence[str], n_best: int, max_answer_length: int) -> list[Generated]:
        """What the model answers from each of them."""
        beams = max(self.generator.settings.beam_size, n_best)
        return self.generator.generate(
            sources,
            beam_size=beams,
            num_return_sequences=beams,
            max_new_tokens=max_answer_length,
            return_details=True,
        )


def best_answer(outputs: Sequence[Generated], context: str, n_best: int, allow_no_answer: bool) -> Answer:
    """The best of what was written from each part of a context.

    Args: as in `GenerativeQuestionAnswerer.answers`.
    """
    every = [one for output in outputs for one in (output.n_best or (output,))]
    spoken = [one for one in every if one.text.strip()]
    every = spoken if spoken and not allow_no_answer else every
    ranked: dict[str, Answer] = {}
    for one in every:
        answer = _answer(one, context)
        if answer.text not in ranked or ranked[answer.text].score < answer.score:
            ranked[answer.text] = answer
    best = sorted(ranked.values(), key=lambda answer: -answer.score)[:n_best]
    return replace(best[0], n_best=tuple(best)) if n_best > 1 else best[0]


def _answer(output: Generated, context: str) -> Answer:
    text = output.text.strip()
    mean = sum(output.log_probs) / max(1, len(output.log_probs))
    # not inside a word: a 1 is not in 2015
    found = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context) if text else None
    start, end = found.span() if found else (None, None)
    return Answer(text, math.exp(mean), start, end)
