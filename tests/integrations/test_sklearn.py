"""The transformer for scikit-learn passes its checks, and works in a pipeline, a grid search and a pickle."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.utils import estimator_checks

from clearhead import TextEncoder
from clearhead.integrations.sklearn import TextVectorizer

TEXTS = ["the old bridge", "hello world", "this is a test", "after the storm", "a world", "was closed"] * 2
LABELS = [0, 1, 1, 0, 1, 0] * 2


@pytest.fixture
def vectorizer(tiny_bert):
    return TextVectorizer(str(tiny_bert), precision="float32", device="cpu")


@pytest.mark.filterwarnings("ignore:Can't test estimator")  # it leaves out the checks with tables of numbers
def test_check_estimator_passes(vectorizer):
    results = estimator_checks.check_estimator(vectorizer)
    assert results
    assert {result["status"] for result in results} == {"passed"}


CHECKS = [
    "check_parameters_default_constructible",
    "check_no_attributes_set_in_init",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_valid_tag_types",
    "check_estimator_tags_renamed",
    "check_mixin_order",
]
"""Checks of scikit-learn that need no data. check_estimator runs only one of them for an estimator of texts."""


@pytest.mark.parametrize("check", CHECKS)
def test_checks_without_data_pass(vectorizer, check):
    getattr(estimator_checks, check)("TextVectorizer", vectorizer)


def test_vectors_are_those_of_the_encoder(vectorizer, tiny_bert):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    options = {"pooling": "cls", "normalize": True, "max_length": 5, "prompt": "query ", "truncate_dim": 7}
    vectors = vectorizer.set_params(**options).fit_transform(np.array(TEXTS, dtype=object))
    np.testing.assert_array_equal(vectors, encoder.encode(TEXTS, **options))
    assert vectors.dtype == np.float32
    assert list(vectorizer.get_feature_names_out()) == [f"textvectorizer{column}" for column in range(7)]


def test_order_and_subsets_do_not_change_a_vector(vectorizer):
    vectors, before = vectorizer.fit(TEXTS).transform(TEXTS[:6]), dict(vars(vectorizer))
    np.testing.assert_allclose(vectorizer.transform(TEXTS[5::-1]), vectors[::-1], atol=1e-6)
    np.testing.assert_allclose(np.concatenate([vectorizer.transform([text]) for text in TEXTS[:6]]), vectors, atol=1e-6)
    assert vars(vectorizer) == before


def test_grid_search_over_a_pipeline(vectorizer):
    search = GridSearchCV(
        make_pipeline(vectorizer, LogisticRegression(max_iter=500)),
        {"textvectorizer__pooling": ["mean", "max"], "logisticregression__C": [1, 100]},
        cv=2,
        error_score="raise",
    )
    search.fit(TEXTS, LABELS)
    assert search.score(TEXTS, LABELS) == 1
    assert {row["textvectorizer__pooling"] for row in search.cv_results_["params"]} == {"mean", "max"}


def test_union_with_other_features(vectorizer):
    union = FeatureUnion([("vectors", vectorizer), ("words", TfidfVectorizer())])
    assert union.fit_transform(TEXTS).shape == (12, 32 + len(union.get_feature_names_out()) - 32)


def test_clone_and_pickle_give_equal_vectors(vectorizer):
    vectors = vectorizer.fit(TEXTS).transform(TEXTS)
    np.testing.assert_array_equal(clone(vectorizer).fit_transform(TEXTS), vectors)
    pickled = pickle.dumps(vectorizer)
    assert len(pickled) < 1000
    np.testing.assert_array_equal(pickle.loads(pickled).transform(TEXTS), vectors)
    with pytest.raises(NotFittedError):
        clone(vectorizer).transform(TEXTS)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([["a", "b"]], "text 0 is a list; expected a string"),
        (np.array([["a"], ["b"]]), "expected texts in one dimension, got 2. Pass one column"),
        ("a", "expected a list of texts, got a single string"),
        ([1.5], "text 0 is a float; expected a string"),
    ],
)
def test_wrong_texts_are_refused(vectorizer, texts, message):
    with pytest.raises(ValueError, match=message):
        vectorizer.fit(TEXTS).transform(texts)


def test_wrong_options_are_refused_by_fit(vectorizer):
    with pytest.raises(ValueError, match="truncate_dim is 99, but this model's vectors have 32 columns"):
        vectorizer.set_params(truncate_dim=99).fit(TEXTS)
