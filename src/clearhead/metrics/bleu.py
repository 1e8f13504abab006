"""Translation metrics: BLEU and chrF, computed by sacrebleu."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.data.documents import References, pad_references
from clearhead.metrics.references import check_parallel, require_package


@dataclass(frozen=True)
class TranslationScores:
    """BLEU and chrF of a corpus, from 0 to 100.

    Args:
        bleu: precision of word n-grams up to n = 4.
        chrf: F-score of character n-grams up to n = 6; recall counts twice (chrF2).
        bleu_signature, chrf_signature: sacrebleu's signatures. Report them with the scores to make them reproducible.
        sentences: number of scored sentences.
    """

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int


def translation_scores(
    hypotheses: Sequence[str], references: References, *, tokenize: str = "13a", lowercase: bool = False
) -> TranslationScores:
    """Return BLEU and chrF of translations over a corpus.

    Equation: BLEU = min(1, exp(1 − r/c)) (p_1 p_2 p_3 p_4)^(1/4), chrF = 5 P R / (4 P + R)
    Source: Papineni et al. 2002, "BLEU"; Popović 2015, "chrF"; Post 2018, "A Call for Clarity in Reporting BLEU Scores"

    Args:
        hypotheses: the translations.
        references: one or more lists, each as long as the hypotheses; None if a list has none for a sentence.
        tokenize: sacrebleu's tokenizer: "13a", "intl", "zh", "char" ...; "none" for tokenized texts.
        lowercase: whether to ignore case.

    Raises:
        ValueError: sacrebleu or a package of its tokenizer is not installed; the tokenizer is unknown; the lists differ
            in length; a sentence has no reference; or the corpus is empty.

    >>> scores = translation_scores(["The old bridge was closed."], [["The old bridge was shut."]])
    >>> round(scores.bleu, 2), round(scores.chrf, 2), scores.bleu_signature[:28]
    (53.73, 71.19, 'nrefs:1|case:mixed|eff:no|to')
    """
    require_package("sacrebleu")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    check_parallel(hypotheses, references)
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"sacrebleu has no tokenizer {tokenize!r}. Use one of: {', '.join(BLEU.TOKENIZERS)}")
    try:
        bleu = BLEU(lowercase=lowercase, tokenize=tokenize)
    except (ImportError, RuntimeError) as error:  # some languages need another package
        raise ValueError(f"sacrebleu's tokenizer {tokenize!r} is not available: {error}") from None
    chrf = CHRF(lowercase=lowercase)
    lists: list[Any] = [list(column) for column in references]  # sacrebleu accepts None
    bleu_score, chrf_score = (metric.corpus_score(list(hypotheses), lists) for metric in (bleu, chrf))
    return TranslationScores(
        bleu=float(bleu_score.score),
        chrf=float(chrf_score.score),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


@dataclass(frozen=True)
class MultiReferenceCorpus:
    """Distinct sources with all their references.

    Args:
        sources: distinct sources, in order of first appearance.
        references: lists as long as the sources; None if a source has fewer references than another.
        lines: for each source, the indices of its lines.
    """

    sources: list[str]
    references: list[list[str | None]]
    lines: list[list[int]]


def group_references(sources: Sequence[str], references: References) -> MultiReferenceCorpus:
    """Merge repeated sources, and collect the references of all their lines.

    Some data sets have one line per translation of a sentence.

    Raises:
        ValueError: as in `translation_scores`.

    >>> corpus = group_references(["Hi.", "Bye.", "Hi."], [["Hallo.", "Tschüss.", "Servus."]])
    >>> corpus.sources, corpus.references
    (['Hi.', 'Bye.'], [['Hallo.', 'Tschüss.'], ['Servus.', None]])
    """
    check_parallel(sources, references)
    lines: dict[str, list[int]] = {}
    for index, source in enumerate(sources):
        lines.setdefault(source, []).append(index)
    grouped = [
        [reference for index in indices for column in references if (reference := column[index]) is not None]
        for indices in lines.values()
    ]
    return MultiReferenceCorpus(list(lines), pad_references(grouped), list(lines.values()))
