"""Generative question answering, with encoder–decoders such as T5."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from clearhead.finite import error_context
from clearhead.pipelines.answering.answers import Answer, BaseQuestionAnswerer, SpanSearchConfig
from clearhead.pipelines.seq2seq.outputs import Generated
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.progress import token_progress
from clearhead.tokenizers.question_context import ContextOverflowError


class GenerativeQuestionAnswerer(BaseQuestionAnswerer):
    """An encoder–decoder that reads a question with its context and writes the answer.

    Source: Raffel et al. 2020, "T5", Appendix D.15: the source is "question: … context: …"

    An answer's score is the geometric mean of the probabilities of its tokens. Its start and end are set if it occurs
    in the context.

    Args:
        generator: the model.

    >>> from clearhead import QuestionAnswerer
    >>> QuestionAnswerer.from_pretrained("my-t5").answer("What was closed?", "The bridge was.").text  # doctest: +SKIP
    'the bridge'
    """

    def __init__(self, generator: TextToText) -> None:
        super().__init__()
        self.generator = generator

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.generator!r})"

    def save_pretrained(self, folder: str | Path) -> None:
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
        """Return the answer to each question from its own context, in the order of the pairs.

        A context that is longer than the model's limit is split between sentences, and the most probable answer to any
        part is returned. The model expresses "no answer" by an empty output.

        Args:
            pairs: questions with their contexts.
            n_best, max_answer_length, max_length, show_progress: as in `QuestionAnswerer.answers`.
            allow_no_answer: whether an empty answer counts; if not, the best one with words is returned, if any.
            no_answer_threshold, stride, batch_tokens: options of extractive models, without effect here.

        Raises:
            ValueError, NonFiniteError: as in `QuestionAnswerer.answers`.
        """
        # constructed to check the options
        SpanSearchConfig(n_best, allow_no_answer, no_answer_threshold, max_answer_length, max_length or 1, stride)
        answers: list[Answer] = []
        total = len(pairs) if isinstance(pairs, Sequence) else None
        with token_progress(total, show_progress) as on_step:
            for index, (question, context) in enumerate(pairs):
                sources = self.source_texts(question, context, max_length, index)
                indices, questions = [index] * len(sources), [question] * len(sources)
                with error_context(index=indices.__getitem__, text=questions.__getitem__):
                    outputs = self.generate_answers(sources, n_best, max_answer_length)
                answers.append(best_generated_answer(outputs, context, n_best, allow_no_answer))
                on_step(1, sum(len(output.token_ids) for output in outputs))
        return answers

    def source_texts(
        self, question: str, context: str, max_length: int | None = None, pair_index: int = 0
    ) -> list[str]:
        """Return the sources for a question: with the whole context, or with each part of a long one.

        Args:
            question, context: the pair.
            max_length: longest source in tokens; None for the model's limit.
            pair_index: index of the pair, for messages.

        Raises:
            ValueError: an empty question or context, or a question that leaves no room for its context.
        """
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise ValueError(f"pair {pair_index}: the {name} is empty")
        try:
            return self.generator.split_document(context, f"question: {question} context: ", max_length)
        except ContextOverflowError as error:
            raise ContextOverflowError(f"pair {pair_index}: the question is too long: {error}") from None

    def generate_answers(self, sources: Sequence[str], n_best: int, max_answer_length: int) -> list[Generated]:
        """Generate the model's answers to sources; each output has at least `n_best` hypotheses, if they exist."""
        beams = max(self.generator.generation_config.beam_size, n_best)
        return self.generator.generate(
            sources,
            beam_size=beams,
            num_return_sequences=beams,
            max_new_tokens=max_answer_length,
            return_details=True,
        )


def best_generated_answer(outputs: Sequence[Generated], context: str, n_best: int, allow_no_answer: bool) -> Answer:
    """Return the best answer among the outputs for all parts of a context.

    Args:
        outputs: the output for each part.
        context, n_best, allow_no_answer: as in `GenerativeQuestionAnswerer.answers`.
    """
    hypotheses = [hypothesis for output in outputs for hypothesis in (output.n_best or (output,))]
    nonempty = [hypothesis for hypothesis in hypotheses if hypothesis.text.strip()]
    hypotheses = nonempty if nonempty and not allow_no_answer else hypotheses
    by_text: dict[str, Answer] = {}
    for hypothesis in hypotheses:
        answer = _answer(hypothesis, context)
        if answer.text not in by_text or by_text[answer.text].score < answer.score:
            by_text[answer.text] = answer
    best = sorted(by_text.values(), key=lambda answer: -answer.score)[:n_best]
    return replace(best[0], n_best=tuple(best)) if n_best > 1 else best[0]


def _answer(output: Generated, context: str) -> Answer:
    text = output.text.strip()
    mean = sum(output.log_probs) / max(1, len(output.log_probs))
    # whole words only: "1" does not occur in "2015"
    match = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context) if text else None
    start, end = match.span() if match else (None, None)
    return Answer(text, math.exp(mean), start, end)
