"""Uninterrupted tiny training, the baseline of interrupted ones."""

import pytest
from support import forks
from support.data.training import outcome, write_data, write_tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Folder for tiny trainings with their data, which the first test of each worker creates."""
    path = tmp_path_factory.mktemp("training")
    write_data(path)
    return path


@pytest.fixture(scope="session")
def whole(folder):
    """Outcome of the uninterrupted run."""
    status, log = forks.run("train", write_tiny(folder, "whole"), log=folder / "whole.txt")
    assert (status, "error" in log) == (0, False)
    return outcome(folder / "whole")
