"""How often a classifier is right: accuracy, and precision, recall and F1 of each label."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.data.records import Row


@dataclass(frozen=True)
class LabelScores:
    """How a label was found, in percent.

    Args:
        precision: of the texts that were said to have it, those that do; 0 where none was said to.
        recall: of the texts that have it, those that were said to; 0 where none has it.
        f1: the harmonic mean of the two.
        support: how many texts have it.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationScores:
    """How a classifier did on texts with labels, in percent.

    Args:
        accuracy: texts whose label was found.
        macro_f1: the mean of the labels' F1, of those that a text has or was said to have.
        labels: each label's scores.
        confusion: for each label (a row) and each label that was said (a column), how many texts; in the labels' order.
        texts: how many there are.
    """

    accuracy: float
    macro_f1: float
    labels: dict[str, LabelScores]
    confusion: list[list[int]]
    texts: int


def classification_scores(
    predictions: Sequence[str], answers: Sequence[str], *, labels: Sequence[str] | None = None
) -> ClassificationScores:
    """Accuracy, macro F1 and each label's scores.

    Equation: P = tp / (tp + fp), R = tp / (tp + fn), F1 = 2 tp / (2 tp + fp + fn), macro F1 = mean of F1
    Source: Manning et al. 2008, "Introduction to Information Retrieval", Sections 8.3 and 13.6

    Args:
        predictions: for each text the label that was said.
        answers: for each text the right one.
        labels: all labels, in their order; those that come, sorted, where None.

    Raises:
        ValueError: lists of different length, no texts, a label that is not among the labels.

    >>> scores = classification_scores(["good", "bad", "bad"], ["good", "good", "bad"])
    >>> round(scores.accuracy, 1), scores.labels["good"].recall, scores.confusion
    (66.7, 50.0, [[1, 0], [1, 1]])
    """
    if len(predictions) != len(answers):
        raise ValueError(f"{len(predictions)} predictions for {len(answers)} texts; one for each is wanted")
    if not answers:
        raise ValueError("there are no texts to score")
    known = sorted({*predictions, *answers}) if labels is None else list(dict.fromkeys(labels))
    check_labels([*predictions, *answers], known)
    places = {label: place for place, label in enumerate(known)}
    counts = np.zeros((len(known), len(known)), dtype=np.int64)
    np.add.at(counts, ([places[label] for label in answers], [places[label] for label in predictions]), 1)
    right, have, said = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    precision, recall, f1 = (
        100 * over / np.maximum(under, 1) for over, under in ((right, said), (right, have), (2 * right, have + said))
    )
    come = have + said > 0
    return ClassificationScores(
        accuracy=float(100 * right.sum() / len(answers)),
        macro_f1=float(f1[come].mean()),
        labels={
            label: LabelScores(float(precision[place]), float(recall[place]), float(f1[place]), int(have[place]))
            for label, place in places.items()
        },
        confusion=counts.tolist(),
        texts=len(answers),
    )


def label_of(row: Row) -> str:
    """Return the label of a row, without white space around it.

    Raises:
        ValueError: the label is empty; the message names the row.

    >>> label_of(Row({"text": "What a film!", "label": " good "}, "a.tsv, line 1"))
    'good'
    """
    label = row.values["label"].strip()
    if not label:
        raise ValueError(f"{row.location}: the label is empty; give the text a label, or remove the row")
    return label


def check_labels(answers: Sequence[str], labels: Sequence[str], places: Sequence[str] | None = None) -> None:
    """Whether all answers are among the labels.

    Args:
        answers: the labels of texts.
        labels: those that there are.
        places: where each answer stands, for the message.

    Raises:
        ValueError: one that is not; the message says the nearest label.

    >>> check_labels(["good", "bad"], ["bad", "good"])
    """
    known = set(labels)
    for number, answer in enumerate(answers):
        if answer not in known:
            where = f"{places[number]}: " if places else ""
            near = difflib.get_close_matches(answer, labels, n=1, cutoff=0)
            hint = f"the nearest is {near[0]!r}" if near else "there are none"
            listed = ", ".join(map(repr, labels[:10])) + (", …" if len(labels) > 10 else "")
            raise ValueError(f"{where}no label {answer!r:.60}; {hint} of {len(labels)}: {listed}")
