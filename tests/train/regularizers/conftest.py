"""Training data for the tests of regularizers."""

import pytest
from support.data.training_data import write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))
