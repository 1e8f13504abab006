"""What encoder–decoders are used for."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from clearhead.generation.config import GenerationConfig
from clearhead.pipelines.generative_question_answerer import GenerativeQuestionAnswerer, best_generated_answer
from clearhead.pipelines.outputs import StreamedToken
from clearhead.pipelines.summarizer import TASK, join_summaries
from clearhead.pipelines.text_to_text import TextToText
from clearhead.serve import schemas
from clearhead.serve.handlers.base import ANSWER_TOKENS, PreparedRequest, estimate_tokens, lengths
from clearhead.serve.http.errors import RefusedError


@dataclass(frozen=True)
class _Generating:
    """What uses have in common that generate.

    Args:
        made: the model.
        most: most tokens that a request may make it generate, in the worst case.
    """

    made: TextToText
    most: int

    def settings(self, texts: Sequence[str], **options: Any) -> GenerationConfig:
        """How texts are generated.

        Raises:
            RefusedError: an option that the model does not take.
        """
        try:
            settings = self.made.generation_config_for(texts, **options)
            self.longest(settings)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return settings

    def longest(self, settings: GenerationConfig) -> int:
        """Most new tokens of an output."""
        return settings.max_target_length(1, self.made.model.config.max_len) - 1

    def cost(self, tokens: int, settings: GenerationConfig, parts: int = 1) -> int:
        """The tokens of a text, and those that its beams will need: hardly an output is more than twice as long."""
        return tokens + settings.beam_size * min(parts * self.longest(settings), 2 * tokens + 16)

    def jobs(self, texts: Sequence[str], settings: GenerationConfig, *, cut: bool = True) -> list[tuple[str, int]]:
        """Texts, each with its cost.

        Raises:
            RefusedError: one is too long, and may not be cut.
        """
        counts = lengths(self.made.tokenizer, texts, self.made.max_length, cut=cut)
        return [(text, self.cost(count, settings)) for text, count in zip(texts, counts, strict=True)]

    def check_work(self, outputs: int, settings: GenerationConfig) -> None:
        """Raises a RefusedError for more than a request may make the server generate."""
        beams, longest = settings.beam_size, self.longest(settings)
        if outputs * beams * longest > self.most:
            raise RefusedError(
                f"{outputs} outputs of up to {longest} tokens with {beams} beams are {outputs * beams * longest:,} "
                f"tokens; this server generates at most {self.most:,} for a request: "
                "send fewer texts, or a smaller max_new_tokens or beam_size"
            )


@dataclass(frozen=True)
class Translate(_Generating):
    """Translations, and whatever else a model makes of texts."""

    def estimate(self, asked: schemas.TranslateRequest) -> int:
        """As `Use.estimate`."""
        settings = self.settings(asked.texts, **dict(asked.options))
        return sum(self.cost(estimate_tokens([text], self.made.max_length), settings) for text in asked.texts)

    def prepare(self, asked: schemas.TranslateRequest) -> PreparedRequest:
        """As `Use.prepare`."""
        settings = self.settings(asked.texts, **dict(asked.options))
        self.check_work(len(asked.texts), settings)
        return PreparedRequest(self.jobs(asked.texts, settings, cut=asked.truncate), asked.options)

    def perform(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """As `Use.perform`: a `Generated` each."""
        return self.made.generate(payloads, return_details=True, **options)

    def stream(self, asked: schemas.TranslateRequest) -> Iterator[StreamedToken]:
        """The translation of a request's only text, token by token."""
        return self.made.stream(asked.texts[0], **dict(asked.options))


@dataclass(frozen=True)
class Summarize(_Generating):
    """Summaries of documents of any length, by the model as it is set up for them."""

    def estimate(self, asked: schemas.SummarizeRequest) -> int:
        """As `Use.estimate`."""
        settings = self.settings(asked.texts, **dict(asked.options))
        return sum(
            self.cost(count, settings, self._parts(count)) for count in (estimate_tokens([one]) for one in asked.texts)
        )

    def prepare(self, asked: schemas.SummarizeRequest) -> PreparedRequest:
        """As `Use.prepare`."""
        settings = self.settings(asked.texts, **dict(asked.options))
        counts = lengths(self.made.tokenizer, asked.texts, None, cut=True)
        self.check_work(sum(map(self._parts, counts)), settings)  # at least; to cut them takes longer
        documents = [self.made.split_document(text) for text in asked.texts]
        self.check_work(sum(map(len, documents)), settings)

        def join(outputs: list[Any]) -> list[Any]:
            left = iter(outputs)
            return [
                join_summaries(count, tuple(islice(left, len(own))))
                for count, own in zip(counts, documents, strict=True)
            ]

        return PreparedRequest(self.jobs(list(chain.from_iterable(documents)), settings), asked.options, join)

    def perform(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """As `Use.perform`: a part's `Generated` each."""
        return self.made.generate(payloads, return_details=True, **options)

    def _parts(self, tokens: int) -> int:
        """Of about how many parts a document is; each is summarised."""
        return max(1, math.ceil(tokens / (self.made.max_length or tokens or 1)))


def summarizer(made: TextToText, most: int) -> Summarize:
    """A model's use for summaries, set up as its config.json describes it; arguments as in the class."""
    return Summarize(made.for_task(TASK) if TASK in made.prompts.tasks else made, most)


@dataclass(frozen=True)
class WriteAnswer(_Generating):
    """Answers that a model writes."""

    def estimate(self, asked: schemas.AnswerRequest) -> int:
        """As `Use.estimate`."""
        return self.cost(estimate_tokens([asked.question, asked.context]), self._settings(asked, []))

    def prepare(self, asked: schemas.AnswerRequest) -> PreparedRequest:
        """As `Use.prepare`."""
        try:
            # what it will read, which says too whether the question leaves room for that
            parts = GenerativeQuestionAnswerer(self.made).source_texts(asked.question, asked.context, None, 0)
        except ValueError as error:
            raise RefusedError(str(error).removeprefix("pair 0: ")) from None
        settings = self._settings(asked, parts)
        self.check_work(len(parts), settings)

        def join(outputs: list[Any]) -> list[Any]:
            return [best_generated_answer(outputs, asked.context, asked.n_best, asked.allow_no_answer)]

        return PreparedRequest(self.jobs(parts, settings), (("n_best", asked.n_best),), join)

    def perform(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """As `Use.perform`: a part's `Generated` each."""
        return GenerativeQuestionAnswerer(self.made).generate_answers(payloads, options["n_best"], ANSWER_TOKENS)

    def _settings(self, asked: schemas.AnswerRequest, parts: Sequence[str]) -> GenerationConfig:
        beams = max(self.made.generation_config.beam_size, asked.n_best)
        return self.settings(parts, beam_size=beams, max_new_tokens=ANSWER_TOKENS)
