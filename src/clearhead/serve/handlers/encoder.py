"""What encoders are used for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clearhead.pipelines.answers import EmptyContextError, SpanSearchConfig
from clearhead.pipelines.question_answerer import WINDOW_LENGTH, QuestionAnswerer
from clearhead.pipelines.span_search import best_answer
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.vectors import EncodeOptions
from clearhead.serve import schemas
from clearhead.serve.handlers.base import ANSWER_TOKENS, PreparedRequest, check_lengths, estimate_tokens, lengths
from clearhead.serve.http.errors import RefusedError
from clearhead.tokenizers.base import Tokens
from clearhead.tokenizers.question_context import PairWindow, pair_windows

_STRIDE = 128


@dataclass(frozen=True)
class Embed:
    """Vectors of texts, or of token ids."""

    made: TextEncoder

    @property
    def _limit(self) -> int:
        return int(self.made.settings.max_length or self.made.model.config.max_len)

    def estimate(self, asked: schemas.EmbeddingsRequest) -> int:
        """As `Use.estimate`."""
        width = self.made.width()
        if asked.dimensions is not None and asked.dimensions > width:
            raise RefusedError(f"dimensions is {asked.dimensions}; this model's vectors have {width} numbers")
        return estimate_tokens(asked.texts, self._limit) + sum(min(len(row), self._limit) for row in asked.rows)

    def prepare(self, asked: schemas.EmbeddingsRequest) -> PreparedRequest:
        """As `Use.prepare`; token ids are taken as they are, cut ones keep the special token at their end."""
        texts, rows = asked.texts, asked.rows
        size, special = self.made.model.config.vocab_size, self.made.tokenizer.special_ids
        if any(number >= size for row in rows for number in row):
            raise RefusedError(f"input: token ids lie in 0 to {size - 1}")
        if asked.truncate:
            tokens = self.made.tokenize(texts)
            rows = [_cut(row, self._limit, special) for row in rows]
        else:
            # uncut, so that what is too long can be told
            before = self.made.settings.prompt_text(None)
            tokens = self.made.tokenizer.encode([before + text for text in texts])
        tokens += [Tokens(row, truncated=False) for row in rows]
        check_lengths(tokens, self._limit)
        options = (("truncate_dim", asked.dimensions),) if asked.dimensions else ()
        return PreparedRequest([(one, len(one.ids)) for one in tokens], options)

    def perform(self, payloads: Sequence[Tokens], **options: Any) -> Sequence[Any]:
        """As `Use.perform`: a vector each."""
        return list(np.asarray(self.made.encode_tokens(payloads, EncodeOptions(**options))))


@dataclass(frozen=True)
class Answer:
    """Answers that an encoder marks in the text."""

    made: QuestionAnswerer

    def estimate(self, asked: schemas.AnswerRequest) -> int:
        """As `Use.estimate`."""
        return estimate_tokens([asked.question, asked.context])

    def prepare(self, asked: schemas.AnswerRequest) -> PreparedRequest:
        """As `Use.prepare`."""
        context, longest = asked.context, min(WINDOW_LENGTH, self.made.max_length)
        reading = SpanSearchConfig(asked.n_best, asked.allow_no_answer, 0.0, ANSWER_TOKENS, longest, _STRIDE)
        try:
            (windows,) = pair_windows(self.made.tokenizer, [(asked.question, context)], longest, _STRIDE)
        except ValueError as error:
            raise RefusedError(str(error).replace(" of pair 0", "")) from None

        def join(logits: list[Any]) -> list[Any]:
            try:
                return [best_answer(context, windows, logits, reading)]
            except EmptyContextError as error:
                raise RefusedError(str(error)) from None

        return PreparedRequest([(window, len(window.ids)) for window in windows], join=join)

    def perform(self, payloads: Sequence[PairWindow], **options: Any) -> Sequence[Any]:
        """As `Use.perform`: the logits of each window."""
        return self.made.span_logits(payloads, None)


@dataclass(frozen=True)
class Classify:
    """Labels of texts."""

    made: TextClassifier

    def estimate(self, asked: schemas.ClassifyRequest) -> int:
        """As `Use.estimate`."""
        return estimate_tokens(asked.texts, self.made.max_length)

    def prepare(self, asked: schemas.ClassifyRequest) -> PreparedRequest:
        """As `Use.prepare`."""
        counts = lengths(self.made.tokenizer, asked.texts, self.made.max_length, cut=asked.truncate)
        return PreparedRequest(list(zip(asked.texts, counts, strict=True)))

    def perform(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """As `Use.perform`: a `Classification` each."""
        return list(self.made.classify(payloads))


def _cut(row: list[int], limit: int, special: frozenset[int]) -> list[int]:
    """Ids cut as a text's are: the special token at the end stays."""
    if len(row) <= limit:
        return row
    return [*row[: limit - 1], row[-1]] if row[-1] in special else row[:limit]
