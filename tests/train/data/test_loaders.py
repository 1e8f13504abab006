"""Scores on held-out data."""

import pytest
import torch
from support.data.training_data import ready, recipe, write_data

from clearhead.kernels import linear
from clearhead.train.data.loaders import build_datasets, build_validator


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def test_validation_scores_ignore_autocast(data, tmp_path, monkeypatch):
    monkeypatch.setattr(linear, "is_supported", lambda dtype: False)  # its matmuls ignore autocast
    spec = recipe(data, "sentence-embeddings", held_out=True, validation={"monitor": "spearman"})
    module, _ = ready(spec, data / "run")
    _, held_out = build_datasets(spec, module.task, tmp_path)
    assert held_out is not None
    measure = build_validator(module.task, held_out, spec)
    plain = measure()
    with torch.autocast("cpu", torch.bfloat16):
        low = measure()
    assert low.pop("loss") != plain.pop("loss")
    assert low == plain
