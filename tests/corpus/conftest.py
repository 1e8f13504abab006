"""Fixtures for tests of encoding: a tiny encoder and a file of sentences."""

import pytest
from support.data.corpora import sentences

from clearhead import TextEncoder


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences(100)) + "\n", encoding="utf-8")
    return tmp_path / "texts.txt"
