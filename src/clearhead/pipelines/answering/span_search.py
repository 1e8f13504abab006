"""Search for the most probable answer spans in a context."""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clearhead.pipelines.answering.answers import Answer, EmptyContextError, SpanSearchConfig
from clearhead.tokenizers.question_context import PairWindow

Logits = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """A span of a context, with its probability as the answer.

    Args:
        start, end: its characters are context[start:end].
        log_prob: log P(start, end); at most 0.
    """

    start: int
    end: int
    log_prob: float


def best_answer(
    context: str, windows: Sequence[PairWindow], logits: Sequence[tuple[Logits, Logits]], config: SpanSearchConfig
) -> Answer:
    """Return the best answer in all windows of a context.

    Args:
        context: the whole context.
        windows: its windows, with the question.
        logits: start and end logits of each window: of [CLS], then of the context's tokens.
        config: the options of the search.

    Raises:
        EmptyContextError: the context contains no text.
    """
    spans: dict[tuple[int, int], Span] = {}
    no_answer = 0.0
    for window, (start_logits, end_logits) in zip(windows, logits, strict=True):
        window_spans, window_no_answer = best_spans(
            start_logits,
            end_logits,
            window.offsets,
            context,
            max_length=config.max_answer_length,
            n_best=config.n_best,
        )
        no_answer = min(no_answer, window_no_answer)
        for span in window_spans:
            other = spans.get((span.start, span.end), span)
            spans[span.start, span.end] = max(other, span, key=lambda candidate: candidate.log_prob)
    ranked = [
        (span.log_prob, Answer(context[span.start : span.end], math.exp(span.log_prob), span.start, span.end))
        for span in spans.values()
    ]
    if config.allow_no_answer:
        ranked.append((no_answer - config.no_answer_threshold, Answer("", math.exp(no_answer), None, None)))
    if not ranked:
        raise EmptyContextError("the context holds nothing that this model's tokenizer takes for text")
    best = [answer for _, answer in heapq.nlargest(config.n_best, ranked, key=lambda pair: pair[0])]
    return replace(best[0], n_best=tuple(best)) if config.n_best > 1 else best[0]


def best_spans(
    start_logits: Logits,
    end_logits: Logits,
    offsets: Sequence[tuple[int, int]],
    context: str,
    *,
    max_length: int,
    n_best: int,
) -> tuple[list[Span], float]:
    """Return the most probable spans of a window, best first, and the log-probability that it has no answer.

    Equation: log P(i, j) = s_i − ln Σ_k exp(s_k) + e_j − ln Σ_k exp(e_k), i ≤ j < i + longest; no answer: i = j = 0
    Source: Devlin et al. 2018, "BERT", Sections 4.2 and 4.3; place 0 is [CLS], and the sums are over it and the context

    Spans that differ in white space at their edges only count as one, with the better probability.

    Args:
        start_logits, end_logits: finite logits s and e (C + 1,), of [CLS] and of the C tokens of the context.
        offsets: characters [start, end) of each token of the context.
        context: the whole context.
        max_length: maximum number of tokens of a span.
        n_best: maximum number of spans.

    >>> import numpy as np
    >>> start, end = np.log([1, 8, 1.0]), np.log([1, 1, 8.0])
    >>> best_spans(start, end, [(0, 3), (3, 7)], "Ada did", max_length=2, n_best=1)[0][0].end
    7
    """
    start_logits, end_logits = _log_softmax(start_logits), _log_softmax(end_logits)
    spans: dict[tuple[int, int], Span] = {}
    for i, j, log_prob in _ranked(start_logits[1:], end_logits[1:], max_length):
        start, end = _strip(context, offsets[i][0], offsets[j][1])
        if start < end and (start, end) not in spans:
            spans[start, end] = Span(start, end, log_prob)
            if len(spans) == n_best:
                break
    return list(spans.values()), float(start_logits[0] + end_logits[0])


def _ranked(start_logits: Logits, end_logits: Logits, max_length: int) -> Iterator[tuple[int, int, float]]:
    """Yield all (i, j) with their log-probabilities, best first; of equal ones the earlier, then the shorter."""
    width = min(max_length, len(end_logits))
    # row i has the ends i, i + 1, …: long contexts need no square matrix
    padded = np.append(end_logits, np.full(width - 1, -np.inf))
    log_probs = (start_logits[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)).ravel()
    for index in np.argsort(-log_probs, kind="stable").tolist():
        if log_probs[index] > -np.inf:
            i, length = divmod(index, width)
            yield i, i + length, float(log_probs[index])


def _strip(context: str, start: int, end: int) -> tuple[int, int]:
    while start < end and context[start].isspace():
        start += 1
    while start < end and context[end - 1].isspace():
        end -= 1
    return start, end


def _log_softmax(logits: Logits) -> Logits:
    shifted = logits - logits.max()
    log_probs: Logits = shifted - np.log(np.exp(shifted).sum())
    return log_probs
