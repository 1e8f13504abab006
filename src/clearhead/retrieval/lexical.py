"""Search by words with BM25, and fusion of two rankings."""

import importlib.util
import logging
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

CONSTANT = 60
"""Constant of the reciprocal-rank fusion."""


class LexicalIndex:
    """BM25 of the words of documents, by the package bm25s.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond", Section 3.2

    Args:
        texts: the documents.

    Raises:
        ValueError: bm25s is not installed.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        if importlib.util.find_spec("bm25s") is None:
            raise ValueError('hybrid search needs bm25s: pip install "clearhead[search]"')
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it would log each step
        listed = list(texts)
        self._index = bm25s.BM25()
        tokens = bm25s.tokenize(listed, stopwords=[], show_progress=False)
        self._has_words = bool(tokens.vocab) and any(len(ids) for ids in tokens.ids)
        if self._has_words:
            self._index.index(tokens, show_progress=False)

    def search(self, query: str, count: int) -> NDArray[np.int64]:
        """Return the rows of documents with words of a query, best first; equal scores in the order of the rows."""
        import bm25s

        words = bm25s.tokenize([query], stopwords=[], return_ids=False, show_progress=False)
        if not (self._has_words and words[0]):
            return np.empty(0, np.int64)
        scores = self._index.get_scores(words[0])
        rows = np.flatnonzero(scores > 0)
        return rows[_top(scores[rows], count)]


def _top(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the positions of the largest scores, largest first; equal scores in their order, also at the cut.

    The top-k of bm25s returns equal scores in any order.
    """
    rows = np.arange(len(scores))
    if count < len(scores):
        smallest = np.partition(scores, len(scores) - count)[len(scores) - count]
        above = np.flatnonzero(scores > smallest)
        rows = np.concatenate([above, np.flatnonzero(scores == smallest)[: count - len(above)]])
    return rows[np.argsort(-scores[rows], kind="stable")]


def fuse(rankings: Sequence[NDArray[np.int64]], count: int) -> tuple[list[int], list[float]]:
    """Return the best rows of several rankings, and their scores.

    Equation: s(d) = Σ_r 1 / (60 + rank_r(d)), with ranks from 1
    Source: Cormack, Clarke and Büttcher 2009, "Reciprocal Rank Fusion Outperforms Condorcet"

    Args:
        rankings: rows, best first.
        count: number of rows to return.

    >>> fuse([np.array([5, 7]), np.array([7, 9])], 2)[0]
    [7, 5]
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking.tolist(), start=1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (CONSTANT + rank)
    rows = sorted(scores, key=lambda row: (-scores[row], row))[:count]
    return rows, [scores[row] for row in rows]
