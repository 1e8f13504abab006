"""A tiny training that nobody interrupts: what the interrupted ones are compared with."""

import pytest
import torch
from support import forks
from support.training import outcome, write_data, write_tiny


@pytest.fixture(scope="module")
def one_thread():
    """As many threads as the commands in processes of their own: sums are made in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A place for tiny trainings, with their data in it: any test may be a worker's first."""
    path = tmp_path_factory.mktemp("training")
    write_data(path)
    return path


@pytest.fixture(scope="session")
def whole(folder):
    """What the run comes to that nobody interrupts."""
    status, said = forks.run("train", write_tiny(folder, "whole"), said=folder / "whole.txt")
    assert (status, "error" in said) == (0, False)
    return outcome(folder / "whole")
