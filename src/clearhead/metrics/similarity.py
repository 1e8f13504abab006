"""Semantic textual similarity: correlation of cosines with human scores."""

import csv
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.data.lines import check_file, open_bytes, text_lines
from clearhead.metrics.references import require_package

_EPSILON = float(np.finfo(np.float32).eps)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Similarity:
    """Correlations of cosines with scores, from −1 to 1.

    Args:
        spearman: rank correlation, the metric of the STS benchmark.
        pearson: linear correlation.
        pairs: number of pairs.
    """

    spearman: float
    pearson: float
    pairs: int


class UndefinedCorrelationError(ValueError):
    """All scores or all predictions are equal."""


def read_pairs(path: Path) -> tuple[list[str], list[str], list[float]]:
    """Read first texts, second texts and scores from a CSV file with these three columns and an optional header.

    Raises:
        ValueError: the file does not exist or is not UTF-8, a line has another number of columns or an invalid score,
            or there are fewer than two pairs.
    """
    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    for number, (line, row) in enumerate(_rows(path)):
        if len(row) != 3:
            raise ValueError(f"{path}, line {line}: {len(row)} columns; expected text, text and score")
        score = _number(row[2])
        if score is None and number == 0:
            log.warning("%s, line 1 is read as a header: %s", path, ", ".join(row))
            continue
        if score is None or not math.isfinite(score):
            raise ValueError(f"{path}, line {line}: the score is {row[2]!r:.60}; expected a number")
        first.append(row[0])
        second.append(row[1])
        scores.append(score)
    if len(scores) < 2:
        raise ValueError(f"{path} has {len(scores)} pairs; a correlation requires at least two")
    return first, second, scores


def line_of_pair(path: Path, pair: int) -> int:
    """Return the line number, from 1, of the pair with an index in the result of `read_pairs`."""
    rows = list(_rows(path))
    header = _number(rows[0][1][2]) is None
    return rows[pair + header][0]


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not empty, with their line numbers."""
    try:
        with open_bytes(check_file(path)) as file:
            reader = csv.reader(text_lines(file, str(path), advice="convert the file to UTF-8"), strict=True)
            yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None


def evaluate_similarity(
    encode: Callable[[Sequence[str]], NDArray[np.float32]],
    first: Sequence[str],
    second: Sequence[str],
    scores: Sequence[float],
) -> Similarity:
    """Return the Spearman and Pearson correlations of the cosines of encoded pairs with their scores.

    Equation: ρ = corr(rank cos(u_i, v_i), rank s_i), r = corr(cos(u_i, v_i), s_i)
    Source: Cer et al. 2017, "SemEval-2017 Task 1"; Reimers et al. 2016 for Spearman

    Args:
        encode: converts texts to vectors of shape (n, d).
        first, second: texts of the pairs.
        scores: human scores, higher for more similar texts.

    Raises:
        ValueError: scipy is not installed.
        UndefinedCorrelationError: all scores or all cosines are equal, up to rounding.
    """
    vectors = encode([*first, *second]).astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = (vectors[: len(first)] * vectors[len(first) :]).sum(axis=1)
    return correlations(cosines, scores, "cosines")


def correlations(predicted: NDArray[Any], scores: Sequence[float], name: str = "predicted scores") -> Similarity:
    """Return the Spearman and Pearson correlations of predictions with scores.

    Args:
        predicted: a prediction for each pair.
        scores: human scores, higher for more similar texts.
        name: name of the predictions in messages.

    Raises:
        ValueError: scipy is not installed.
        UndefinedCorrelationError: all scores are equal, or all predictions are, up to the rounding of float32.
    """
    require_package("scipy")
    from scipy import stats

    for what, numbers, rounding in (("scores", np.asarray(scores), 0.0), (name, predicted, 4 * _EPSILON)):
        if np.ptp(numbers) <= rounding * np.abs(numbers).max():
            raise UndefinedCorrelationError(f"all {what} are {numbers[0]:g}, so their correlation is undefined")
    return Similarity(
        spearman=float(stats.spearmanr(predicted, scores).statistic),
        pearson=float(stats.pearsonr(predicted, scores).statistic),
        pairs=len(scores),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
