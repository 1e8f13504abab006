"""How much of people's summaries a summary says: ROUGE."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.data.documents import References
from clearhead.metrics.references import check_parallel, require_package

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SummaryScores:
    """Means of ROUGE's F1 over documents, in percent.

    Args:
        rouge1: of words.
        rouge2: of pairs of neighbouring words.
        rouge_l: of the longest sequence of words that both have in this order.
        documents: how many were scored.
    """

    rouge1: float
    rouge2: float
    rouge_l: float
    documents: int


def summary_scores(summaries: Sequence[str], references: References) -> SummaryScores:
    """ROUGE-1, ROUGE-2 and ROUGE-L of summaries, as the package rouge-score computes them, with its stemmer.

    Where a document has several references, the best counts, by each measure for itself, as for SciTLDR. Words are
    made of the letters a to z and digits: ROUGE is a measure of English.

    Equation: F1 = 2 P R / (P + R), P = |s ∩ r| / |s|, R = |s ∩ r| / |r|
    Source: Lin 2004, "ROUGE"; Cachola et al. 2020, "TLDR: Extreme Summarization of Scientific Documents", Section 5

    Args:
        summaries: the summaries.
        references: one list or several, each as long as the summaries; None where a list has none for a document.

    Raises:
        ValueError: rouge-score is missing; lists of different length; a document without a reference; no documents.

    >>> scores = summary_scores(["The old bridges closed."], [["An old bridge was closing."], ["The boats."]])
    >>> round(scores.rouge1, 2)
    66.67
    """
    require_package("rouge_score")
    from rouge_score import rouge_scorer

    check_parallel(summaries, references)
    kinds = ("rouge1", "rouge2", "rougeL")
    scorer = rouge_scorer.RougeScorer(kinds, use_stemmer=True)
    sums = dict.fromkeys(kinds, 0.0)
    strange = 0
    for summary, *some in zip(summaries, *references, strict=True):
        golds = [gold for gold in some if gold is not None]
        strange += not any(re.search("[A-Za-z0-9]", gold) for gold in golds)
        for kind, score in scorer.score_multi(golds, summary).items():
            sums[kind] += score.fmeasure
    if strange:
        log.warning("%d documents have references without a word of ASCII letters or digits: each counts 0", strange)
    first, second, longest = (100 * sums[kind] / len(summaries) for kind in kinds)
    return SummaryScores(first, second, longest, len(summaries))
