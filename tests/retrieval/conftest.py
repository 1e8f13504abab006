"""Fixtures for tests of indexes: a tiny encoder and an index of its vectors."""

import os

import pytest
from support.data.indexes import DOCUMENTS

from clearhead import Index, TextEncoder


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch):
    """Do not wait for the disk: these tests do not cut the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")


@pytest.fixture
def index(encoder, tmp_path):
    return Index.build(encoder, DOCUMENTS, tmp_path / "index", columns={"id": range(100, 200)})
