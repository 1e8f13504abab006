"""The search for the best span: where an answer begins and where it ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """A part of a context, and how probable it is as the answer.

    Args:
        start, end: its characters are context[start:end].
        log_prob: log P(start, end); at most 0.
    """

    start: int
    end: int
    log_prob: float


def best_spans(
    begin: Logits, end: Logits, offsets: Sequence[tuple[int, int]], context: str, *, longest: int, count: int
) -> tuple[list[Span], float]:
    """The most probable spans of a window of the context, best first, and the log-probability that it has no answer.

    Equation: log P(i, j) = s_i − ln Σ_k exp(s_k) + e_j − ln Σ_k exp(e_k), i ≤ j < i + longest; no answer: i = j = 0
    Source: Devlin et al. 2018, "BERT", Sections 4.2 and 4.3; place 0 is [CLS], and the sums are over it and the context

    A span is the same whichever tokens give it: white space at its edges is left out, and it counts once, by the best.

    Args:
        begin, end: finite logits s and e (C + 1,), of the first token of the window and of the C tokens of the context.
        offsets: for each token of the context its characters [start, end).
        context: the context.
        longest: most tokens in a span.
        count: how many spans are wanted; there may be fewer.

    >>> import numpy as np
    >>> begin, end = np.log([1, 8, 1.0]), np.log([1, 1, 8.0])
    >>> best_spans(begin, end, [(0, 3), (3, 7)], "Ada did", longest=2, count=1)[0][0].end
    7
    """
    begin, end = _log_softmax(begin), _log_softmax(end)
    spans: dict[tuple[int, int], Span] = {}
    for i, j, log_prob in _ranked(begin[1:], end[1:], longest):
        start, stop = _trimmed(context, offsets[i][0], offsets[j][1])
        if start < stop and (start, stop) not in spans:
            spans[start, stop] = Span(start, stop, log_prob)
            if len(spans) == count:
                break
    return list(spans.values()), float(begin[0] + end[0])


def _ranked(begin: Logits, end: Logits, longest: int) -> Iterator[tuple[int, int, float]]:
    """All (i, j) with their log-probabilities, best first; of equal ones the earlier, then the shorter."""
    width = min(longest, len(end))
    # row i holds the ends i, i + 1 ..., so that long contexts need no square
    ends = np.lib.stride_tricks.sliding_window_view(np.append(end, np.full(width - 1, -np.inf)), width)
    log_probs = (begin[:, None] + ends).ravel()
    for place in np.argsort(-log_probs, kind="stable").tolist():
        if log_probs[place] > -np.inf:
            i, more = divmod(place, width)
            yield i, i + more, float(log_probs[place])


def _trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    while start < end and context[start].isspace():
        start += 1
    while start < end and context[end - 1].isspace():
        end -= 1
    return start, end


def _log_softmax(logits: Logits) -> Logits:
    shifted = logits - logits.max()
    normalised: Logits = shifted - np.log(np.exp(shifted).sum())
    return normalised
