"""The best rows are those of the dot products in float64, whatever the vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.indexes import exact_top, write_vectors

from clearhead.retrieval.exact import above, float32_error, search_exact
from clearhead.retrieval.files import from_bfloat16, to_bfloat16

DTYPES = ["float32", "bfloat16"]


def rounded(vectors, dtype):
    return from_bfloat16(to_bfloat16(vectors)) if dtype == "bfloat16" else vectors


def make_vectors(seed, rows, width, kind):
    chance = np.random.default_rng(seed)
    vectors = chance.standard_normal((rows, width)).astype(np.float32)
    if kind == "close":  # many rows within the rounding error of each other
        vectors = (vectors[:1] + 1e-7 * vectors).astype(np.float32)
    if kind == "equal":
        vectors = vectors[chance.integers(0, max(rows // 3, 1), rows)]
    if kind == "scales":
        vectors *= np.float32(10.0) ** chance.integers(-12, 12, (rows, 1)).astype(np.float32)
    if kind == "zeros":
        vectors[chance.random(rows) < 0.5] = 0.0
    return vectors


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 300),
    width=st.integers(1, 70),
    count=st.integers(1, 20),
    kind=st.sampled_from(["random", "close", "equal", "scales", "zeros"]),
)
def test_rows_and_scores_are_those_of_float64(tmp_path_factory, dtype, seed, rows, width, count, kind):
    vectors = make_vectors(seed, rows, width, kind)
    queries = np.concatenate([make_vectors(seed + 1, 2, width, "scales"), vectors[:1], np.zeros_like(vectors[:1])])
    stored = write_vectors(tmp_path_factory.mktemp("rows"), vectors, dtype, parts=2)
    found = search_exact(stored, queries, count)
    for query, top, scores in zip(queries, found.rows, found.scores, strict=True):
        expected, expected_scores = exact_top(rounded(vectors, dtype), query, count)
        assert top.tolist() == expected.tolist()
        np.testing.assert_array_equal(scores, expected_scores)


def test_bound_of_float32_holds_and_matters():
    chance = np.random.default_rng(0)
    rows = (np.ones((4000, 384)) + 1e-4 * chance.standard_normal((4000, 384))).astype(np.float32)
    query = np.ones(384, np.float32)
    exact = rows.astype(np.float64).sum(axis=1)
    error = np.abs((rows @ query).astype(np.float64) - exact)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert (error <= float32_error(384) * np.linalg.norm(query) * norms).all()
    assert error.max() > 0


def test_above_keeps_scores_within_the_margin():
    scores = np.float32([0.1, 0.9, 0.5, 0.49, 0.5, 0.2])
    assert above(scores, 2, 0.0).tolist() == [1, 2, 4]
    assert above(scores, 2, 0.02).tolist() == [1, 2, 3, 4]
    assert above(scores, 6, 0.0).tolist() == list(range(6))
