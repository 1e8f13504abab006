"""Fixtures for tests of web exports: a tiny random translator, and the shipped one."""

import pytest
from support.once import once
from support.pages import web

from clearhead import TextToText


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder with a tiny translator, `model`, and its export, `page`."""

    def make(folder):
        (folder / "model").mkdir(parents=True)
        web.tiny_translator(folder / "model")
        web.export(folder / "model", folder / "page")

    return once(tmp_path_factory, "tiny-web", make)


@pytest.fixture(scope="session")
def tiny_pipeline(tiny):
    return TextToText.from_pretrained(tiny / "model", precision="float32", device="cpu")


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    """Export of the shipped translator."""
    return once(tmp_path_factory, "shipped-web", lambda folder: web.export("tatoeba-en-de", folder))
