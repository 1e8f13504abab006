"""Folders of tiny models to serve."""

import pytest
from support.models.served import write_models


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("models"))
