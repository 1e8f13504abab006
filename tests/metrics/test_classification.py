"""Accuracy, macro F1 and the scores of labels equal scikit-learn."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from clearhead.metrics.classification import check_labels, classification_scores

LABELS = ["good", "bad", "odd", "never"]
pairs = st.lists(st.tuples(st.sampled_from(LABELS[:3]), st.sampled_from(LABELS[:3])), min_size=1, max_size=30)


@given(pairs)
def test_scores_equal_scikit_learn(rows):
    predicted, expected = map(list, zip(*rows, strict=True))
    scores = classification_scores(predicted, expected, labels=LABELS)
    assert scores.accuracy == pytest.approx(100 * metrics.accuracy_score(expected, predicted))
    assert scores.macro_f1 == pytest.approx(
        100 * metrics.f1_score(expected, predicted, average="macro", zero_division=0)
    )
    reference = metrics.precision_recall_fscore_support(expected, predicted, labels=LABELS, zero_division=0)
    assert list(scores.labels) == LABELS
    for label, precision, recall, f1, support in zip(LABELS, *reference, strict=True):
        result = scores.labels[label]
        assert (result.precision, result.recall, result.f1) == pytest.approx((100 * precision, 100 * recall, 100 * f1))
        assert result.support == support
    np.testing.assert_array_equal(scores.confusion, metrics.confusion_matrix(expected, predicted, labels=LABELS))
    assert scores.texts == len(rows) == np.sum(scores.confusion)
    assert list(classification_scores(predicted, expected).labels) == sorted({*predicted, *expected})


def test_by_hand():
    # the mean over good (F1 2/3) and bad (F1 2/3); "never" counts for nothing
    scores = classification_scores(["good", "bad", "bad"], ["good", "good", "bad"], labels=["bad", "never", "good"])
    assert scores.macro_f1 == pytest.approx(200 / 3)
    assert scores.confusion == [[1, 0, 0], [0, 0, 0], [1, 0, 1]]


def test_bad_input():
    score = inspect.unwrap(classification_scores)
    with pytest.raises(ValueError, match="1 predictions for 2 texts"):
        score(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="no texts"):
        score([], [])
    with pytest.raises(ValueError, match="no label 'god'; the nearest is 'good' of 4: 'good', 'bad', 'odd', 'never'"):
        score(["good"], ["god"], labels=LABELS)
    with pytest.raises(ValueError, match="a.tsv, line 2: no label 'xx'; the nearest is "):
        check_labels(["good", "xx"], LABELS, ["a.tsv, line 1", "a.tsv, line 2"])
