"""Quality of rankings: the reciprocal rank of the first relevant document."""

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np


def mean_reciprocal_rank(
    queries: Sequence[Hashable], scores: Sequence[float], relevant: Sequence[bool], *, cutoff: int | None = None
) -> float:
    """Return the mean reciprocal rank over the queries that have a relevant document.

    Equation: MRR = 1/|Q| Σ_q 1 / rank_q, rank_q: rank of the first relevant document; 0 beyond the cutoff
    Source: Voorhees 1999, "The TREC-8 Question Answering Track Report", Section 2

    Args:
        queries: the query of each document.
        scores: the score of each document. Of equal scores, irrelevant documents count first.
        relevant: whether each document is relevant to its query.
        cutoff: last rank that counts, 10 for MRR@10; None for all.

    Raises:
        ValueError: no query has a relevant document.

    >>> mean_reciprocal_rank(["a", "a", "b", "b"], [0.9, 0.1, 0.3, 0.2], [True, False, False, True])
    0.75
    """
    documents: dict[Hashable, list[tuple[float, bool]]] = defaultdict(list)
    for query, score, is_relevant in zip(queries, scores, relevant, strict=True):
        documents[query].append((-score, is_relevant))
    ranks = []
    for ranking in documents.values():
        order = [is_relevant for _, is_relevant in sorted(ranking)]  # False before True
        if True in order:
            ranks.append(1 + order.index(True))
    if not ranks:
        raise ValueError("no query has a relevant document, with a label of at least 0.5")
    return float(np.mean([1 / rank if cutoff is None or rank <= cutoff else 0.0 for rank in ranks]))
