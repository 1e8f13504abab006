"""The best rows are those of the dot products in float64, whatever the vectors."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.data.indexes import exact_top, write_vectors

from clearhead.kernels.native import library
from clearhead.retrieval import exact
from clearhead.retrieval.exact import above, float32_error, search_exact
from clearhead.retrieval.files import from_bfloat16, to_bfloat16
from clearhead.retrieval.quantization import quantize_query, quantize_rows

DTYPES = ["float32", "bfloat16", "int8"]


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
    if kind == "subnormal":  # few digits are left in bfloat16
        vectors *= np.float32(1e-40)
    if kind == "zeros":
        vectors[chance.random(rows) < 0.5] = 0.0
    return vectors


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 300),
    width=st.integers(1, 70),
    count=st.integers(1, 20),
    kind=st.sampled_from(["random", "close", "equal", "scales", "subnormal", "zeros"]),
)
@example(seed=4, rows=1, width=1, count=1, kind="subnormal")
def test_rows_and_scores_are_those_of_float64(tmp_path_factory, dtype, seed, rows, width, count, kind):
    vectors = make_vectors(seed, rows, width, kind)
    queries = np.concatenate([make_vectors(seed + 1, 2, width, "scales"), vectors[:1], np.zeros_like(vectors[:1])])
    stored = write_vectors(tmp_path_factory.mktemp("rows"), vectors, dtype, parts=2)
    found = search_exact(stored, queries, count)
    for query, top, scores in zip(queries, found.rows, found.scores, strict=True):
        expected, expected_scores = exact_top(rounded(vectors, dtype), query, count)
        assert top.tolist() == expected.tolist()
        np.testing.assert_array_equal(scores, expected_scores)


def test_rounding_to_bfloat16_changes_scores_by_up_to_0_4_percent():
    """Relative to the length of the query, for vectors of length 1."""
    vectors, queries = make_vectors(0, 300, 384, "random"), make_vectors(1, 20, 384, "random")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    worst = np.full(384, 1 + 2**-8 + 2**-12, np.float32)  # just above the middle between two numbers of bfloat16
    changes = [np.abs((rounded(vectors, "bfloat16") - vectors) @ queries.T).max()]
    changes.append(np.abs(rounded(worst, "bfloat16") / worst - 1).max())
    assert max(changes) <= 0.004
    assert max(changes) > 0.003


@pytest.mark.slow
def test_results_without_the_kernel_are_the_same(tmp_path, monkeypatch):
    stored = write_vectors(tmp_path, make_vectors(0, 3000, 100, "close"), "int8")
    queries = make_vectors(1, 20, 100, "random")
    found = []
    for isa in (None, *library.supported()):
        monkeypatch.setattr(exact.library, "isa_with", lambda function, isa=isa: isa)
        found.append(search_exact(stored, queries, 10))
    for other in found[1:]:
        np.testing.assert_array_equal(other.rows, found[0].rows)
        np.testing.assert_array_equal(other.scores, found[0].scores)


def test_bound_of_float32_holds_and_matters():
    chance = np.random.default_rng(0)
    rows = (np.ones((4000, 384)) + 1e-4 * chance.standard_normal((4000, 384))).astype(np.float32)
    query = np.ones(384, np.float32)
    exact = rows.astype(np.float64).sum(axis=1)
    error = np.abs((rows @ query).astype(np.float64) - exact)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert (error <= float32_error(384) * np.linalg.norm(query) * norms).all()
    assert error.max() > 0


@pytest.mark.parametrize("isa", [None, *library.supported()])
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 200),
    width=st.integers(1, 200),
    kind=st.sampled_from(["random", "close", "scales", "zeros"]),
)
def test_bounds_of_codes_contain_the_exact_products(tmp_path_factory, isa, seed, rows, width, kind):
    vectors = make_vectors(seed, rows, width, kind)
    stored = write_vectors(tmp_path_factory.mktemp("rows"), vectors, "int8")
    query = make_vectors(seed + 1, 1, width, "random")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact.library, "isa_with", lambda function: isa)
        upper, slack, lower = exact._bounds(stored, query)
    products = vectors.astype(np.float64) @ query.astype(np.float64)
    error = np.linalg.norm(query.astype(np.float64)) * stored.bounds[:, 1] + slack
    assert (products <= upper).all()
    assert (products >= upper - 2.0 * error * (1 + 1e-6)).all()
    if isa is None:
        assert (lower <= products).all()
    else:
        blocks = np.array_split(products, range(library.SEARCH_ROWS, rows, library.SEARCH_ROWS))
        assert (lower <= [block.max() for block in blocks]).all()


def bounds_of(codes, bounds, query, factors, isa):
    upper = np.empty(len(codes), np.float32)
    lower = library.search_bounds(codes, bounds, query, factors, upper, isa)
    return upper, lower


def test_kernels_of_all_instruction_sets_compute_the_same_bits():
    chance = np.random.default_rng(0)
    for width in (1, 31, 32, 64, 100, 384, 1030):
        codes, bounds = quantize_rows(chance.standard_normal((150, width)).astype(np.float32))
        query = quantize_query(chance.standard_normal(width).astype(np.float32))
        factors = (query.scale, query.norm, 1e-5)
        found = [bounds_of(codes, bounds, query.codes, factors, isa) for isa in library.supported()]
        sums = codes.astype(np.int64) @ query.codes.astype(np.int64)
        for upper, lower in found:
            scores = sums.astype(np.float32) * (np.float32(query.scale) * bounds[:, 0])
            errors = np.float32(query.norm) * bounds[:, 1] + np.float32(1e-5)
            np.testing.assert_array_equal(upper, scores + errors)
            np.testing.assert_array_equal(lower, [part.max() for part in np.array_split(scores - errors, [64, 128])])


def test_largest_codes_do_not_overflow():
    for width in (384, 4096):
        codes, bounds = quantize_rows(np.ones((2, width), np.float32) * np.float32([[1.0], [-1.0]]))
        query = quantize_query(np.ones(width, np.float32))
        assert np.abs(codes).min() == 127
        for isa in library.supported():
            upper, _ = bounds_of(codes, bounds, query.codes, (query.scale, query.norm, 0.0), isa)
            np.testing.assert_allclose(upper, [width, -width], rtol=1e-3)


def test_threads_do_not_share_bounds(tmp_path):
    chance = np.random.default_rng(0)
    stored = write_vectors(tmp_path, chance.standard_normal((5000, 32)).astype(np.float32), "int8")
    queries = chance.standard_normal((64, 32)).astype(np.float32)
    expected = [exact.search_exact(stored, query[None], 5).rows for query in queries]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            found = pool.map(lambda query: exact.search_exact(stored, query[None], 5).rows, queries)
            for one, other in zip(expected, found, strict=True):
                np.testing.assert_array_equal(one, other)


def test_few_rows_are_computed_again(tmp_path, monkeypatch):
    chance = np.random.default_rng(0)
    vectors = chance.standard_normal((20_000, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    stored, computed = write_vectors(tmp_path, vectors, "int8"), []
    gather = stored.gather
    monkeypatch.setattr(stored, "gather", lambda rows: computed.append(len(rows)) or gather(rows))
    search_exact(stored, vectors[:3], 10)
    assert sum(computed) < 3 * 1000


def test_norms_that_would_overflow_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a vector has the norm 1e\+19; expected at most 1e\+18"):
        write_vectors(tmp_path, np.float32([[1e19]]), "float32")


def test_above_keeps_scores_within_the_margin():
    scores = np.float32([0.1, 0.9, 0.5, 0.49, 0.5, 0.2])
    assert above(scores, 2, 0.0).tolist() == [1, 2, 4]
    assert above(scores, 2, 0.02).tolist() == [1, 2, 3, 4]
    assert above(scores, 6, 0.0).tolist() == list(range(6))
