"""Questions answered in the words of a text: the reading of extractive models."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.finite import check_finite, naming
from clearhead.io import hub
from clearhead.models.heads import SpanClassifier
from clearhead.pipelines.span_search import Logits, Span, best_spans
from clearhead.runtime.packed_batch import packed_batches
from clearhead.runtime.precision import Precision, device_named, dtype_for, inference_copy
from clearhead.runtime.progress import token_progress
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import Tokens
from clearhead.tokenizers.question_context import PairWindow, pair_windows
from clearhead.tokenizers.tokenizer import Tokenizer

WINDOW_LENGTH = 384
"""Tokens that are read at once: what extractive models are trained on (Devlin et al. 2018, in the authors' code)."""

_PAIRS = 256
"""Pairs that are read, sorted by length and computed together."""


@dataclass(frozen=True)
class Answer:
    """An answer in the words of the context.

    Args:
        text: the answer, context[start:end]; "" where the context has none.
        score: its probability, from 0 to 1, among all spans of the window of the context that it was found in.
        start, end: where it stands in the context, in characters; None where the context has no answer, or where a
            model that generates answers put it in words of its own.
        n_best: all answers that were found, best first, this one included, where several were asked for.

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
    """A context holds nothing that the model's tokenizer takes for text."""


@dataclass(frozen=True)
class SpanSearchConfig:
    """How a context is read; the meanings are told in `QuestionAnswerer.answer`."""

    n_best: int
    allow_no_answer: bool
    no_answer_threshold: float
    max_answer_length: int
    max_length: int
    stride: int

    def __post_init__(self) -> None:
        for name, least in (("n_best", 1), ("max_answer_length", 1), ("stride", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if math.isnan(self.no_answer_threshold):
            raise ValueError("no_answer_threshold is a number; got nan")


class QuestionAnswerer:
    """An encoder that marks the answer to a question in a text, from a checkpoint with a span head.

    Equation: P(i, j) = softmax(s)_i softmax(e)_j, i ≤ j; no answer: P([CLS], [CLS])
    Source: Devlin et al. 2018, "BERT", Sections 4.2 and 4.3

    Args:
        model: the encoder with its head, in float32.
        tokenizer: its tokenizer.
        family: the checkpoint family that `save_pretrained` writes.
        precision: "float32", "bfloat16", or "auto": bfloat16 where the processor multiplies it fast.
        device: "auto", "cpu", "cuda" ...

    >>> from clearhead import QuestionAnswerer
    >>> reader = QuestionAnswerer.from_pretrained("my-reader")  # doctest: +SKIP
    >>> reader.answer("What was closed?", "The old bridge was closed after the storm.").text  # doctest: +SKIP
    'The old bridge'
    """

    def __init__(
        self,
        model: SpanClassifier,
        tokenizer: Tokenizer,
        family: EncoderFamily,
        *,
        precision: Precision = "float32",
        device: str = "auto",
    ) -> None:
        if len(model.head_config.labels) != 2:
            raise ValueError(
                f"a span head has two outputs, beginning and end; this one has {len(model.head_config.labels)}"
            )
        self.model, self.tokenizer, self.family = model, tokenizer, family
        self.name = f"of type {family.model_type}"
        self.device = device_named(device)
        self.dtype = dtype_for(precision, self.device)
        self._runner = inference_copy(model, self.dtype, self.device)
        config = model.encoder.config
        self.max_length = min(tokenizer.max_length or config.max_len, config.max_len)
        told = tokenizer.config.get("model_input_names")
        # some tokenizers number the two texts though their model was never told so
        self._typed = config.num_token_types > 1 and (not isinstance(told, list) or "token_type_ids" in told)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        precision: Precision = "float32",
        device: str = "auto",
        revision: str | None = None,
    ) -> "QuestionAnswerer":
        """The model in a local folder or on the Hugging Face Hub.

        Args:
            name: a folder or a Hub id.
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.

        Raises:
            ValueError: no such model, files that are missing or broken, or a model without a span head.

        An encoder–decoder gives a `GenerativeQuestionAnswerer`, which writes its answers.
        """
        folder = hub.resolve_model(name, revision)
        if checkpoints.is_seq2seq(folder):
            from clearhead.pipelines.generative_question_answerer import GenerativeQuestionAnswerer
            from clearhead.pipelines.text_to_text import TextToText

            generator = TextToText.from_pretrained(folder, precision=precision, device=device)
            generator.name = str(name)
            return GenerativeQuestionAnswerer(generator)
        model, family = checkpoints.load_span_classifier(folder)
        tokenizer = check_vocabulary(Tokenizer.from_folder(folder), folder, model.encoder.config.vocab_size)
        reader = cls(model, tokenizer, family, precision=precision, device=device)
        reader.name = str(name)
        return reader

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that transformers opens, with the weights in float32."""
        folder = Path(folder)
        self.family.save_with_head(self.model, folder)
        self.tokenizer.save(folder, self.max_length)

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
        """The part of the context that answers the question.

        A context that is too long for the model is read in windows that overlap, and the most probable span of all
        windows is the answer; a span that two windows show counts once, with the better score.

        Args:
            question: the question.
            context: the text that holds the answer, of any length.
            n_best: how many answers the result's `n_best` shall hold, best first; there may be fewer.
            allow_no_answer: whether the answer may be that there is none. Only models trained for it (SQuAD 2.0's)
                can tell, and no checkpoint says whether its model was.
            no_answer_threshold: there is no answer where ln P(none) − ln P(best span) is above this; P(none) is the
                least over all windows. In a single window that is a difference of logits, and τ in Section 4.3.
            max_answer_length: most tokens in an answer.
            max_length: tokens in a window, with question and special tokens; None for 384, or what the model takes
                where that is less.
            stride: tokens of the context that neighbouring windows share, up to half of a window's.

        Raises:
            ValueError: an empty question or context, a question that leaves no room for its context, an option out of
                range.
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

        Args:
            pairs: questions with their contexts.
            batch_tokens: tokens in a batch; None for what keeps the device busy.
            show_progress: a progress bar on standard error.
            n_best, allow_no_answer, no_answer_threshold, max_answer_length, max_length, stride: as in `answer`.

        Raises:
            ValueError: as in `answer`; the message names the pair, counted from 0.
            NonFiniteError: the logits of a pair hold NaN or infinity; its index and text are the question's.
        """
        if max_length is not None and max_length > self.max_length:
            raise ValueError(f"max_length is {max_length}, but this model takes at most {self.max_length} tokens")
        longest = min(WINDOW_LENGTH, self.max_length) if max_length is None else max_length
        reading = SpanSearchConfig(n_best, allow_no_answer, no_answer_threshold, max_answer_length, longest, stride)
        total = len(pairs) if isinstance(pairs, Sequence) else None
        left, found = iter(pairs), list[Answer]()
        with token_progress(total, show_progress) as advance:
            while some := list(islice(left, _PAIRS)):
                windows = pair_windows(self.tokenizer, some, longest, stride, first_number=len(found))
                pair_of = [pair for pair, those in enumerate(windows, len(found)) for _ in those]
                asked = [some[pair - len(found)][0] for pair in pair_of]
                with naming(index=pair_of.__getitem__, text=asked.__getitem__):
                    logits = iter(self._logits([window for those in windows for window in those], batch_tokens))
                for (_, context), those in zip(some, windows, strict=True):
                    found.append(best_answer(context, those, list(islice(logits, len(those))), reading))
                advance(len(some), sum(len(window.ids) for those in windows for window in those))
        return found

    def _logits(self, windows: Sequence[PairWindow], batch_tokens: int | None) -> list[tuple[Logits, Logits]]:
        """For each window the logits of beginnings and of ends: of [CLS], then of the context's tokens."""
        logits = [(np.empty(0), np.empty(0))] * len(windows)
        types = [window.token_types for window in windows]
        self._runner.eval()
        tokens = [Tokens(window.ids, truncated=False) for window in windows]
        precision = str(self.dtype).removeprefix("torch.")
        with naming(text=lambda index: self.tokenizer.decode(windows[index].ids), model=self.name, precision=precision):
            for batch in packed_batches(tokens, batch_tokens, self.model.encoder.config, self.device):
                with torch.inference_mode():
                    both = self._runner(batch.ids, batch.mask, batch.row(types) if self._typed else None)
                begins, ends = (part[0, : batch.tokens].double().cpu().split(batch.lengths) for part in both)
                for index, begin, end in zip(batch.indices, begins, ends, strict=True):
                    window = windows[index]
                    places = [0, *range(window.context_start, window.context_start + len(window.offsets))]
                    logits[index] = begin[places].numpy(), end[places].numpy()
                    check_finite(np.stack(logits[index])[None], "logits", [index])
        return logits


def best_answer(
    context: str, windows: Sequence[PairWindow], logits: Sequence[tuple[Logits, Logits]], reading: SpanSearchConfig
) -> Answer:
    """The best answer over all windows of a context.

    Args:
        context: the whole of it.
        windows: what the model saw of it.
        logits: for each window those of beginnings and of ends: of [CLS], then of the context's tokens.
        reading: what is asked for.

    Raises:
        EmptyContextError: there is no text in it.
    """
    spans: dict[tuple[int, int], Span] = {}
    none = 0.0
    for window, (begin, end) in zip(windows, logits, strict=True):
        found, no_answer = best_spans(
            begin, end, window.offsets, context, longest=reading.max_answer_length, count=reading.n_best
        )
        none = min(none, no_answer)
        for span in found:
            before = spans.get((span.start, span.end), span)
            spans[span.start, span.end] = max(before, span, key=lambda one: one.log_prob)
    ranked = [
        (span.log_prob, Answer(context[span.start : span.end], math.exp(span.log_prob), span.start, span.end))
        for span in spans.values()
    ]
    if reading.allow_no_answer:
        ranked.append((none - reading.no_answer_threshold, Answer("", math.exp(none), None, None)))
    if not ranked:
        raise EmptyContextError("the context holds nothing that this model's tokenizer takes for text")
    best = [answer for _, answer in heapq.nlargest(reading.n_best, ranked, key=lambda one: one[0])]
    return replace(best[0], n_best=tuple(best)) if reading.n_best > 1 else best[0]
