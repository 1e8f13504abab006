"""Vectors and numbers of documents of every type are searched exactly, or refused in one line."""

import inspect
import warnings

import numpy as np
import pytest
import torch
from support.data.indexes import exact_top, write_vectors

from clearhead import Index
from clearhead.retrieval import exact
from clearhead.retrieval.exact import query_vectors, search_exact
from clearhead.retrieval.files import MAX_NORM

DTYPES = ["float32", "bfloat16", "int8"]
WIDTH = 32


def message_of(function, *arguments, **options):
    """Return the message of the error of a function without the type checks of the test suite."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # callers check the message
            inspect.unwrap(function)(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        (np.full((1, WIDTH), 1e300), "a vector holds 1e+300, which is too large for float32. Normalize vectors"),
        (np.full((1, WIDTH), 1e38, np.float32), "norm 5.66e+38; expected at most 1e+18, so that products fit float32"),
        (np.full((1, WIDTH), 3.4e38, np.float32), "norm 1.92e+39; expected at most 1e+18"),
        (np.full((1, WIDTH), 1 + 1j), "expected vectors of real numbers, got values of type complex128"),
        (torch.ones(1, WIDTH, dtype=torch.complex64), "real numbers, got values of type complex64"),
        ([[1 + 1j] * WIDTH], "real numbers, got values of type complex128"),
        ([["a"] * WIDTH], "real numbers, got values of type <U1"),
        ([[None] * WIDTH], "real numbers, got values of type object"),
        (None, "real numbers, got values of type object"),
        ([[1.0] * WIDTH, [1.0]], "shape (n, 32), got rows of different lengths or types"),
        ([1.0] * WIDTH, "shape (n, 32), got (32,)"),
        ([], "shape (n, 32), got (0,)"),
        ([[np.inf] * WIDTH], "a vector holds NaN or infinity"),
    ],
)
def test_vectors_that_cannot_be_searched_are_refused_without_warnings(vectors, words):
    assert words in message_of(query_vectors, vectors, WIDTH)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_vectors_are_not_reported_as_damage(encoder, tmp_path, dtype):
    index = Index.build(encoder, ["hello", "world"], tmp_path / "index", dtype=dtype)
    for vectors, words in (
        (np.full((1, WIDTH), 1e300), "too large for float32"),
        (np.full((1, WIDTH), 1e38, np.float32), "so that products fit float32"),
    ):
        for approximate in (False, True):
            assert words in message_of(Index.search_vectors, index, vectors, approximate=approximate)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_vectors_are_searched_exactly(tmp_path, monkeypatch, dtype, kernel):
    if not kernel:
        monkeypatch.setattr(exact.library, "isa_with", lambda function: None)
    rows = np.random.default_rng(0).standard_normal((50, 384))
    rows *= MAX_NORM / (1 + 1e-6) / np.linalg.norm(rows, axis=1, keepdims=True)
    stored = write_vectors(tmp_path, rows.astype(np.float32), dtype)
    queries = query_vectors(np.concatenate([rows[:2], -rows[:2]]), 384)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = search_exact(stored, queries, 3)
    for query, top in zip(queries, found.rows, strict=True):
        assert top.tolist() == exact_top(stored.read(0, 50), query, 3)[0].tolist()


def test_damaged_bounds_are_damage_for_large_vectors_too(encoder, tmp_path):
    index = Index.build(encoder, ["hello", "world", "the house"], tmp_path / "index")
    path = index.folder / "bounds.float32"
    path.write_bytes(b"\xff" * path.stat().st_size)  # NaN
    vectors = np.zeros((1, WIDTH), np.float32)
    vectors[0, 0] = MAX_NORM
    with pytest.raises(ValueError, match=r"bounds\.float32 is damaged\. Build the index again"):
        Index.open(index.folder, encoder).search_vectors(vectors, 2)


def test_arrays_tensors_and_lists_of_numbers_find_the_same_rows(index):
    vectors = np.random.default_rng(0).integers(-3, 4, (2, WIDTH))
    expected = index.search_vectors(vectors.astype(np.float32), 5)
    tensor = torch.from_numpy(vectors)
    others = [vectors.astype(dtype) for dtype in (np.int8, np.int64, np.float16, np.float64, ">f4")]
    others += [vectors.astype(float).tolist(), [*vectors.astype(np.float32)]]
    others += [tensor.bfloat16(), tensor.float().requires_grad_(), [*tensor.bfloat16()], tensor]
    for other in others:
        found = index.search_vectors(other, 5)
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("value", [1.5, None, True, "3", [3]])
def test_numbers_of_documents_that_are_not_whole_are_refused(index, value):
    words = f"must be a whole number of at least 1; got {value!r}"
    vectors = np.zeros((1, WIDTH), np.float32)
    assert message_of(Index.search, index, "hello", top_k=value) == f"top_k {words}"
    assert message_of(Index.search, index, "hello", candidates=value) == f"candidates {words}"
    assert message_of(Index.search_vectors, index, vectors, value) == f"top_k {words}"


def test_number_of_documents_of_numpy_and_hybrid_search(index):
    assert index.search("hello", top_k=int(np.int64(3))) == inspect.unwrap(Index.search)(index, "hello", np.int64(3))
    for hybrid in (False, True):
        assert message_of(Index.search, index, "hello", 0, hybrid=hybrid) == "top_k must be at least 1; got 0"
