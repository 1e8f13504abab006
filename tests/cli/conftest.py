"""Tiny models for the commands."""

import pytest
from support.models import families, folders


@pytest.fixture(scope="session")
def models(tmp_path_factory, tiny_bert):
    """Folder with an encoder in bert/, an encoder–decoder in marian/ and a classifier in classifier/."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "bert").symlink_to(tiny_bert)
    (folder / "marian").mkdir()
    folders.marian(folder / "marian", lively=True)
    families.make("bert", folder / "classifier", "ForSequenceClassification")
    return folder


@pytest.fixture(scope="session")
def marian(models):
    """Folder of the encoder–decoder."""
    return models / "marian"
