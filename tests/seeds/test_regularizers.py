"""Each regularizer is a switch of the recipe and changes the trained weights."""

import pytest
import torch
from safetensors.torch import load_file
from support.data.training_data import recipe, write_data

from clearhead.train.regularizers import REGULARIZERS
from clearhead.train.trainer import train

SWITCHED = {
    "dropout": {"dropout": 0.3},
    "attention_masking": {"attention_masking": False},
    "weight_decay": {"weight_decay": 0.5},
    "l2_penalty": {"l2_penalty": 0.01},
    "layer_norm": {"layer_norm": False},
    "label_smoothing": {"label_smoothing": 0.2},
    "augmentation": {"augmentation": {"token_masking": 0.3}},
    "gradient_clipping": {"gradient_clipping": 0.01},
    "residual_path": {"dropout": {"residual": 0.2}, "layer_drop": 0.3},
    "r_drop": {"dropout": 0.3, "r_drop": 2.0},
}


def test_every_regularizer_is_switched():
    """Distillation and early stopping have tests of their own below."""
    switched = {key for regularize in SWITCHED.values() for key in regularize}
    assert {entry.name for entry in REGULARIZERS} - switched == {"distillation", "early_stopping"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def _weights(data, folder, regularize, **sections):
    trained = train(recipe(data, "text-to-text", folder, regularize=regularize, **sections))
    assert trained.finished
    return load_file(folder / "checkpoints" / f"step-{trained.step:08d}.safetensors")


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    return _weights(data, tmp_path_factory.mktemp("plain") / "run", {})


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SWITCHED))
def test_regularizer_changes_the_weights(data, plain, tmp_path, name):
    weights = _weights(data, tmp_path / "run", SWITCHED[name])
    if name == "layer_norm":
        assert not any("norm" in key for key in weights)
        assert any("norm" in key for key in plain)
    assert any(not torch.equal(weights[key], plain[key]) for key in weights)


def test_same_recipe_trains_the_same_weights(data, plain, tmp_path):
    weights = _weights(data, tmp_path / "run", {})
    assert all(torch.equal(weights[key], plain[key]) for key in plain)


@pytest.mark.slow
def test_distillation_changes_the_weights(data, plain, tmp_path):
    teacher = train(recipe(data, "text-to-text", tmp_path / "teacher", seed=5)).folder
    weights = _weights(data, tmp_path / "run", {"distillation": {"teacher": str(teacher)}})
    assert any(not torch.equal(weights[key], plain[key]) for key in weights)


@pytest.mark.slow
def test_early_stopping_ends_the_run(data, tmp_path):
    """No validation improves by 100, so the run stops after two more validations."""
    spec = {"early_stopping": {"patience": 2, "min_delta": 100.0}}
    trained = train(
        recipe(
            data,
            "text-to-text",
            tmp_path / "run",
            held_out=True,
            regularize=spec,
            training={"steps": 20},
            validation={"every": 2},
        )
    )
    assert trained.stopped_early
    assert trained.finished
    assert trained.step == 6
