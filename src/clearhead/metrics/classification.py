"""Classification metrics: accuracy, and precision, recall and F1 of each label."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.data.records import Row


@dataclass(frozen=True)
class LabelScores:
    """Scores of one label, in percent.

    Args:
        precision: share of correct predictions among those of this label; 0 without predictions.
        recall: share of predicted texts among those with this label; 0 without such texts.
        f1: harmonic mean of precision and recall.
        support: number of texts with this label.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationScores:
    """Scores of a classifier on labeled texts, in percent.

    Args:
        accuracy: share of texts with a correct prediction.
        macro_f1: mean F1 over the labels that occur among the texts or the predictions.
        labels: scores of each label.
        confusion: number of texts for each true label (row) and predicted label (column), in the order of the labels.
        texts: number of texts.
    """

    accuracy: float
    macro_f1: float
    labels: dict[str, LabelScores]
    confusion: list[list[int]]
    texts: int


def classification_scores(
    predictions: Sequence[str], answers: Sequence[str], *, labels: Sequence[str] | None = None
) -> ClassificationScores:
    """Return accuracy, macro F1 and the scores of each label.

    Equation: P = tp / (tp + fp), R = tp / (tp + fn), F1 = 2 tp / (2 tp + fp + fn), macro F1 = mean of F1
    Source: Manning et al. 2008, "Introduction to Information Retrieval", Sections 8.3 and 13.6

    Args:
        predictions: predicted label of each text.
        answers: true label of each text.
        labels: all labels, in order. Defaults to the sorted labels that occur.

    Raises:
        ValueError: the lists differ in length, there are no texts, or a label is unknown.

    >>> scores = classification_scores(["good", "bad", "bad"], ["good", "good", "bad"])
    >>> round(scores.accuracy, 1), scores.labels["good"].recall, scores.confusion
    (66.7, 50.0, [[1, 0], [1, 1]])
    """
    if len(predictions) != len(answers):
        raise ValueError(f"{len(predictions)} predictions for {len(answers)} texts; expected one per text")
    if not answers:
        raise ValueError("there are no texts to score")
    known = sorted({*predictions, *answers}) if labels is None else list(dict.fromkeys(labels))
    check_labels([*predictions, *answers], known)
    indices = {label: index for index, label in enumerate(known)}
    counts = np.zeros((len(known), len(known)), dtype=np.int64)
    np.add.at(counts, ([indices[label] for label in answers], [indices[label] for label in predictions]), 1)
    correct, support, predicted = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    precision, recall, f1 = (
        100 * numerator / np.maximum(denominator, 1)
        for numerator, denominator in (
            (correct, predicted),
            (correct, support),
            (2 * correct, support + predicted),
        )
    )
    occurs = support + predicted > 0
    return ClassificationScores(
        accuracy=float(100 * correct.sum() / len(answers)),
        macro_f1=float(f1[occurs].mean()),
        labels={
            label: LabelScores(float(precision[i]), float(recall[i]), float(f1[i]), int(support[i]))
            for label, i in indices.items()
        },
        confusion=counts.tolist(),
        texts=len(answers),
    )


def label_of(row: Row) -> str:
    """Return the label of a row, without surrounding whitespace.

    Raises:
        ValueError: the label is empty; the message names the row.

    >>> label_of(Row({"text": "What a film!", "label": " good "}, "a.tsv, line 1"))
    'good'
    """
    label = row.values["label"].strip()
    if not label:
        raise ValueError(f"{row.location}: the label is empty; give the text a label, or remove the row")
    return label


def check_labels(answers: Sequence[str], labels: Sequence[str], locations: Sequence[str] | None = None) -> None:
    """Check that all answers are known labels.

    Args:
        answers: labels of texts.
        labels: known labels.
        locations: file and line of each answer, for the message.

    Raises:
        ValueError: an answer is unknown; the message suggests the nearest label.

    >>> check_labels(["good", "bad"], ["bad", "good"])
    """
    known = set(labels)
    for number, answer in enumerate(answers):
        if answer not in known:
            location = f"{locations[number]}: " if locations else ""
            near = difflib.get_close_matches(answer, labels, n=1, cutoff=0)
            hint = f"the nearest is {near[0]!r}" if near else "there are none"
            listed = ", ".join(map(repr, labels[:10])) + (", …" if len(labels) > 10 else "")
            raise ValueError(f"{location}no label {answer!r:.60}; {hint} of {len(labels)}: {listed}")
