"""How near translations are to people's: BLEU and chrF, as sacrebleu computes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.data.documents import References, pad_references
from clearhead.metrics.references import check_parallel, require_package


@dataclass(frozen=True)
class TranslationScores:
    """BLEU and chrF of a corpus, from 0 to 100.

    Args:
        bleu: of words, up to four in a row.
        chrf: of characters, P and R being means over one to six in a row; recall counts twice (chrF2).
        bleu_signature, chrf_signature: sacrebleu's, to be told beside the numbers: who reads them can compute the same.
        sentences: how many were scored.
    """

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int


def translation_scores(
    hypotheses: Sequence[str], references: References, *, tokenize: str = "13a", lowercase: bool = False
) -> TranslationScores:
    """BLEU and chrF of translations over a corpus.

    Equation: BLEU = min(1, exp(1 − r/c)) (p_1 p_2 p_3 p_4)^(1/4), chrF = 5 P R / (4 P + R)
    Source: Papineni et al. 2002, "BLEU"; Popović 2015, "chrF"; Post 2018, "A Call for Clarity in Reporting BLEU Scores"

    Args:
        hypotheses: the translations.
        references: one list or several, each as long as the hypotheses; None where a list has none for a sentence.
        tokenize: how sacrebleu cuts words: "13a", "intl", "zh", "char" ...; "none" for texts that are cut already.
        lowercase: upper and lower case are the same.

    Raises:
        ValueError: sacrebleu is missing, or what its tokeniser needs; an unknown tokeniser; lists of different length;
            a sentence without a reference; no sentences.

    >>> scores = translation_scores(["The old bridge was closed."], [["The old bridge was shut."]])
    >>> round(scores.bleu, 2), round(scores.chrf, 2), scores.bleu_signature[:28]
    (53.73, 71.19, 'nrefs:1|case:mixed|eff:no|to')
    """
    require_package("sacrebleu")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    check_parallel(hypotheses, references)
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"sacrebleu has no tokeniser {tokenize!r}; it has {', '.join(BLEU.TOKENIZERS)}")
    try:
        bleu = BLEU(lowercase=lowercase, tokenize=tokenize)
    except (ImportError, RuntimeError) as error:  # the tokenisers of some languages are packages of their own
        raise ValueError(f"sacrebleu's tokeniser {tokenize!r} cannot be used: {error}") from None
    chrf = CHRF(lowercase=lowercase)
    lists: list[Any] = [list(some) for some in references]  # None is allowed, though its types do not say so
    first, second = (metric.corpus_score(list(hypotheses), lists) for metric in (bleu, chrf))
    return TranslationScores(
        bleu=float(first.score),
        chrf=float(second.score),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


@dataclass(frozen=True)
class MultiReferenceCorpus:
    """Sources, each once, with all their references.

    Args:
        sources: the different ones, in the order of their first coming.
        references: lists as long as the sources; None where one has fewer references than another.
        places: for each source, the numbers of the lines that held it.
    """

    sources: list[str]
    references: list[list[str | None]]
    places: list[list[int]]


def group_references(sources: Sequence[str], references: References) -> MultiReferenceCorpus:
    """Each source once: where it came several times, the references of all its lines are its references.

    So are data sets laid out that give a line for each translation of a sentence.

    Raises:
        ValueError: as in `translation_scores`.

    >>> joined = group_references(["Hi.", "Bye.", "Hi."], [["Hallo.", "Tschüss.", "Servus."]])
    >>> joined.sources, joined.references
    (['Hi.', 'Bye.'], [['Hallo.', 'Tschüss.'], ['Servus.', None]])
    """
    check_parallel(sources, references)
    places: dict[str, list[int]] = {}
    for number, source in enumerate(sources):
        places.setdefault(source, []).append(number)
    found = [
        [one for number in numbers for some in references if (one := some[number]) is not None]
        for numbers in places.values()
    ]
    return MultiReferenceCorpus(list(places), pad_references(found), list(places.values()))
