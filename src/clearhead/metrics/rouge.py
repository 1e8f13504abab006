"""Summarization metrics: ROUGE, computed by rouge-score."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.data.documents import References
from clearhead.metrics.references import check_parallel, require_package

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SummaryScores:
    """Mean ROUGE F1 over documents, in percent.

    Args:
        rouge1: F1 of words.
        rouge2: F1 of word bigrams.
        rouge_l: F1 of the longest common subsequence of words.
        documents: number of scored documents.
    """

    rouge1: float
    rouge2: float
    rouge_l: float
    documents: int


def summary_scores(summaries: Sequence[str], references: References) -> SummaryScores:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L of summaries, computed by rouge-score with its stemmer.

    With several references per document, each metric uses the best one, as for SciTLDR. Words consist of the letters a
    to z and digits, so ROUGE is only meaningful for English.

    Equation: F1 = 2 P R / (P + R), P = |s ∩ r| / |s|, R = |s ∩ r| / |r|
    Source: Lin 2004, "ROUGE"; Cachola et al. 2020, "TLDR: Extreme Summarization of Scientific Documents", Section 5

    Args:
        summaries: the summaries.
        references: one or more lists, each as long as the summaries; None if a list has none for a document.

    Raises:
        ValueError: rouge-score is not installed; the lists differ in length; a document has no reference; there are no
            documents.

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
    num_unscorable = 0
    for summary, *candidates in zip(summaries, *references, strict=True):
        texts = [reference for reference in candidates if reference is not None]
        num_unscorable += not any(re.search("[A-Za-z0-9]", text) for text in texts)
        for kind, score in scorer.score_multi(texts, summary).items():
            sums[kind] += score.fmeasure
    if num_unscorable:
        log.warning("%d documents have references without ASCII letters or digits; their scores are 0", num_unscorable)
    rouge1, rouge2, rouge_l = (100 * sums[kind] / len(summaries) for kind in kinds)
    return SummaryScores(rouge1, rouge2, rouge_l, len(summaries))
