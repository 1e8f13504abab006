"""Sizes of an exported page, as docs/guides/explore.md states them."""

import numpy as np
import pytest
from support.pages import web

from clearhead.export.web.page_files import STATIC
from clearhead.export.web.weights import MAX_MEGABYTES, _store


def megabytes(paths):
    return round(sum(path.stat().st_size for path in paths) / 1e6)


def test_sizes_of_both_runtimes():
    web.require_page()
    assert megabytes([STATIC / "runtime.wasm.gz"]) == 3
    assert megabytes([STATIC / "runtime_scalar.wasm.gz", STATIC / "worker_scalar.js.gz"]) == 3


def test_weights_of_a_page_have_at_most_100_megabytes():
    assert MAX_MEGABYTES == 100


@pytest.mark.parametrize(
    ("value", "dtype"), [(0.5, "float16"), (2.0**-24, "float16"), (1 / 3, "float32"), (1e5, "float32")]
)
def test_float16_is_used_where_it_is_exact(value, dtype):
    array = np.full((2, 3), value, dtype=np.float32)
    stored, _, expanded = _store(array, int8=False)
    assert stored == dtype
    assert expanded == array.tobytes()


@pytest.mark.slow
def test_sizes_of_the_page_of_the_translator(shipped, tmp_path):
    """A browser downloads neither the copies for pages from the disk nor the runtime for old browsers."""
    web.export("tatoeba-en-de", tmp_path / "page", "--int8")
    for folder, size in ((shipped, 22), (tmp_path / "page", 13)):
        files = [path for path in folder.rglob("*") if path.is_file() and "disk" not in path.parts]
        assert megabytes(path for path in files if "scalar" not in path.name) == size
