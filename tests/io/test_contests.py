"""Two processes on one output: one of them is refused by name or comes later, and no file is broken."""

import random

import pytest
from support import contests


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contests")
    contests.prepare(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["encode", "train", "export", "mixed"])
def test_concurrent_writers_do_not_break_a_file(folder, kind, seed):
    getattr(contests, kind)(folder, random.Random(f"{kind} {seed}"), seed)
