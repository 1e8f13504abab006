"""The pipeline "question-answering"."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from clearhead.integrations.transformers.base import TextPipeline
from clearhead.pipelines.answering.span_search import Logits
from clearhead.pipelines.question_answerer import WINDOW_LENGTH, QuestionAnswerer
from clearhead.tokenizers.base import check_not_blank
from clearhead.tokenizers.question_context import ContextOverflowError, PairWindow
from clearhead.tokenizers.tokenizer import Tokenizer

_STRIDE = 128
_MAX_ANSWER_TOKENS = 15


@dataclass(frozen=True)
class WordWindow:
    """A window of a context, with the word of each of its tokens.

    Args:
        window: the window.
        words: index of the word of each token of the context; None for a token outside words.
    """

    window: PairWindow
    words: list[int | None]


class QuestionAnswering(TextPipeline):
    """Spans of a context that answer a question: {"score": ..., "start": ..., "end": ..., "answer": ...}.

    Equation: P(i, j) = softmax(s)_i softmax(e)_j, i ≤ j < i + max_answer_len, over the context and [CLS]

    Args:
        task: name of the task.
        model: an encoder with a span head.
        defaults: options of every call.

    Options of a call: `top_k`, the number of answers; `handle_impossible_answer`, whether "" may be the answer;
    `align_to_words`, whether an answer is extended to whole words; `max_answer_len`, `max_seq_len` and `doc_stride` in
    tokens. Scores of equal texts are added.
    """

    options = (
        *("top_k", "doc_stride", "max_answer_len", "max_seq_len", "max_question_len", "handle_impossible_answer"),
        "align_to_words",
    )

    def __init__(self, task: str, model: QuestionAnswerer, defaults: Mapping[str, Any]) -> None:
        super().__init__(task, defaults)
        self.model = model

    def __call__(self, *inputs: Any, question: Any = None, context: Any = None, **options: Any) -> Any:
        """Answer questions about contexts.

        Args:
            inputs: an object with "question" and "context", a list of these, or a question and a context.
            question: a question, or a list of questions.
            context: the context of all questions, or a list of contexts.
            options: options of the task.

        Returns:
            The answer, or a list of answers if top_k is above 1; for several questions a list of these.

        Raises:
            ValueError: a missing or blank question or context, or an option out of range.
        """
        examples = _examples(inputs, question, context)
        if not isinstance(examples, list):
            return super().__call__(examples, **options)
        results = super().__call__(examples, **options)
        return results[0] if len(examples) == 1 else results

    def compute(self, inputs: list[Any], options: Mapping[str, Any]) -> list[Any]:
        config = _SearchOptions.of(options, self.model.max_length)
        own = [list(_windows(self.model.tokenizer, *_pair(number, one), config)) for number, one in enumerate(inputs)]
        logits = iter(self.model.span_logits([one.window for windows in own for one in windows]))
        return [
            _answers(example["context"], windows, list(islice(logits, len(windows))), config)
            for example, windows in zip(inputs, own, strict=True)
        ]


@dataclass(frozen=True)
class _SearchOptions:
    top_k: int
    max_answer_len: int
    max_seq_len: int
    doc_stride: int
    handle_impossible_answer: bool
    align_to_words: bool

    @classmethod
    def of(cls, options: Mapping[str, Any], limit: int) -> "_SearchOptions":
        given = {name: value for name, value in options.items() if value is not None and name != "max_question_len"}
        length = min(given.pop("max_seq_len", WINDOW_LENGTH), limit)
        values = {
            "top_k": 1,
            "max_answer_len": _MAX_ANSWER_TOKENS,
            "doc_stride": min(length // 2, _STRIDE),
            "handle_impossible_answer": False,
            "align_to_words": True,
        }
        config = cls(**(values | given), max_seq_len=length)
        for name in ("top_k", "max_answer_len", "max_seq_len"):
            if getattr(config, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(config, name)}")
        return config


def _examples(inputs: tuple[Any, ...], question: Any, context: Any) -> Any:
    """Return one example, a list of examples, or a stream of them, from the arguments of a call."""
    if len(inputs) == 1:
        return inputs[0]
    if inputs:
        both = len(inputs) == 2 and all(isinstance(one, str) for one in inputs)
        return {"question": inputs[0], "context": inputs[1]} if both else list(inputs)
    if question is None or context is None:
        raise ValueError("expected a question and a context: pipeline(question=..., context=...)")
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    if isinstance(question, str):
        raise ValueError("got one question and several contexts; expected a list of questions, one for each context")
    contexts = [context] * len(question) if isinstance(context, str) else list(context)
    if len(contexts) != len(question):
        raise ValueError(f"got {len(question)} questions and {len(contexts)} contexts; expected as many of both")
    return [{"question": one, "context": other} for one, other in zip(question, contexts, strict=True)]


def _pair(number: int, example: Any) -> tuple[str, str]:
    if not isinstance(example, Mapping) or not {"question", "context"} <= set(example):
        raise ValueError(f'input {number} is {example!r:.60}; expected {{"question": ..., "context": ...}}')
    for name in ("question", "context"):
        if not isinstance(example[name], str):
            raise ValueError(f"the {name} of input {number} is a {type(example[name]).__name__}; expected a string")
        check_not_blank(example[name], f"the {name} of input {number}")
    return example["question"], example["context"]


def _windows(tokenizer: Tokenizer, question: str, context: str, config: _SearchOptions) -> Iterator[WordWindow]:
    """Yield overlapping windows of a context; successive windows share doc_stride tokens."""
    encoding = tokenizer.backend.encode(question, context)
    ids, types, offsets, words = encoding.ids, encoding.type_ids, encoding.offsets, encoding.word_ids
    places = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    first, end = (places[0], places[-1] + 1) if places else (len(ids), len(ids))
    room = config.max_seq_len - (len(ids) - (end - first))
    if room <= config.doc_stride and end - first > room:
        raise ContextOverflowError(
            f"a window has {config.max_seq_len} tokens, of which the question leaves {room} for the context; expected "
            f"more than doc_stride={config.doc_stride}. Shorten the question, or give a smaller doc_stride"
        )
    for start in range(first, max(end, first + 1), max(room - config.doc_stride, 1)):
        stop = min(start + room, end)
        window = PairWindow(
            ids[:first] + ids[start:stop] + ids[end:],
            types[:first] + types[start:stop] + types[end:],
            first,
            offsets[start:stop],
        )
        yield WordWindow(window, words[start:stop])
        if stop == end:
            break


def _answers(
    context: str, windows: list[WordWindow], logits: list[tuple[Logits, Logits]], config: _SearchOptions
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the best answer, or the best top_k answers, in all windows of a context."""
    answers: dict[str, dict[str, Any]] = {}
    no_answer = 1.0
    for window, (start_logits, end_logits) in zip(windows, logits, strict=True):
        starts, ends = _softmax(start_logits), _softmax(end_logits)
        no_answer = min(no_answer, float(starts[0] * ends[0]))
        for i, j, score in _best_pairs(starts[1:], ends[1:], config):
            start, end = _characters(window, i, j, align_to_words=config.align_to_words)
            text = context[start:end]
            known = answers.setdefault(text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text})
            known["score"] += score
    ranked = list(answers.values())
    if config.handle_impossible_answer:
        ranked.append({"score": no_answer, "start": 0, "end": 0, "answer": ""})
    ranked = sorted(ranked, key=lambda answer: -answer["score"])[: config.top_k]
    return ranked[0] if len(ranked) == 1 else ranked


def _softmax(logits: Logits) -> Logits:
    exponentials: Logits = np.exp(logits - logits.max())
    probabilities: Logits = exponentials / exponentials.sum()
    return probabilities


def _best_pairs(starts: Logits, ends: Logits, config: _SearchOptions) -> Iterator[tuple[int, int, float]]:
    """Yield the most probable (start, end) tokens, and their probability."""
    # extending to words makes some spans equal
    count = 2 * config.top_k + 10 if config.align_to_words else config.top_k
    scores = np.tril(np.triu(np.outer(starts, ends)), config.max_answer_len - 1).ravel()
    count = min(count, len(scores))
    best = np.argpartition(-scores, count - 1)[:count] if len(scores) else np.empty(0, int)
    for index in best[np.argsort(-scores[best], kind="stable")].tolist():
        if scores[index] > 0:
            i, j = divmod(index, len(ends))
            yield i, j, float(scores[index])


def _characters(window: WordWindow, i: int, j: int, *, align_to_words: bool) -> tuple[int, int]:
    """Return the characters [start, end) of the tokens i to j of a window's context."""
    offsets, words = window.window.offsets, window.words
    if align_to_words and words[i] is not None and words[j] is not None:
        i, j = words.index(words[i]), len(words) - 1 - words[::-1].index(words[j])
    return offsets[i][0], offsets[j][1]
