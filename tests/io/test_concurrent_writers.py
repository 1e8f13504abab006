"""Two processes write one output: one is refused or runs later, and no file is broken."""

import random

import pytest
from support import concurrent_writers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("races")
    concurrent_writers.prepare(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["encode", "train", "export", "mixed"])
def test_concurrent_writers_do_not_break_a_file(folder, kind, seed):
    getattr(concurrent_writers, kind)(folder, random.Random(f"{kind} {seed}"), seed)
