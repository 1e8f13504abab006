"""`clearhead ablate` compares the same training with and without each regularizer."""

import json
import shutil

import pytest
import yaml
from support.command import clearhead, refused, started
from support.data.training_data import recipe, write_data

from clearhead.train.ablation import ablate, toggled
from clearhead.train.regularizers import ablations
from clearhead.train.regularizers.augmentation import Augmentation
from clearhead.train.regularizers.early_stopping import EarlyStopping


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def spec(data, folder, **sections):
    return recipe(data, "classification", output=folder / "out", held_out=True, **sections)


def written(data, folder, **sections):
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(spec(data, folder, **sections).model_dump(mode="json")), encoding="utf-8")
    return path


@pytest.mark.slow
def test_table_numbers_and_picture(data, tmp_path):
    path = written(data, tmp_path, regularize={"dropout": 0.1, "label_smoothing": 0.1})
    changes = ["--without", "dropout,label_smoothing", "--with", "r_drop", "--seeds", 2]
    status, out, err = started("ablate", path, *changes, "--quiet")
    assert (status, err) == (0, "")
    names = ["as the recipe says", "without dropout", "without label_smoothing", "with r_drop"]
    assert all(name.replace("_", " ") in out for name in names)
    effects = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert [effect["name"] for effect in effects] == names
    base = effects[0]
    for effect in effects:
        assert len(effect["runs"]) == 2
        for score, mean in effect["mean"].items():
            one, two = (run[score] for run in effect["runs"])
            assert mean == pytest.approx((one + two) / 2)
            assert effect["spread"][score] == pytest.approx(abs(one - two) / 2**0.5)
            assert effect["difference"][score] == pytest.approx(mean - base["mean"][score])
            moved = [run[score] - own[score] for run, own in zip(effect["runs"], base["runs"], strict=True)]
            assert effect["difference_spread"][score] == pytest.approx(abs(moved[0] - moved[1]) / 2**0.5)
    assert len({effect["mean"]["loss"] for effect in effects}) == 4
    assert (tmp_path / "out" / "ablation.png").read_bytes().startswith(b"\x89PNG")
    weights = sorted((tmp_path / "out").rglob("model.safetensors"))
    assert len(weights) == 8
    # finished runs are not run again
    times = [path.stat().st_mtime_ns for path in weights]
    for name in ("ablation.png", "ablation.json", "as-the-recipe-says/seed-1/result.json"):
        path_of_killed = tmp_path / "out" / name
        path_of_killed.with_name(f".{path_of_killed.name}.abcdefgh.part").touch()
    assert "already contains an ablation" in refused("ablate", path, *changes)
    status, out, _ = clearhead("ablate", path, *changes, "--resume", "--json", "--quiet")
    assert (status, json.loads(out)) == (0, effects)
    assert [path.stat().st_mtime_ns for path in weights] == times
    assert not list((tmp_path / "out").rglob(".*.part"))
    line = refused("ablate", path, "training.steps=5", *changes, "--resume", "--quiet")
    assert "another recipe: training.steps: 4 became 5" in line


@pytest.mark.slow
def test_damaged_results_are_refused(data, tmp_path):
    small = spec(data, tmp_path, training={"steps": 1})
    ablate(small, without=["layer_norm"], seeds=1)
    path = tmp_path / "out" / "as-the-recipe-says" / "seed-1" / "result.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    for change in ({"scores": None}, {"scores": {"loss": 10**400}}, {"recipe": [1]}, {"seed": 2}):
        path.write_text(json.dumps(whole | change), encoding="utf-8")
        with pytest.raises(ValueError, match=r"result\.json is damaged"):
            ablate(small, without=["layer_norm"], seeds=1, resume=True)
    path.unlink()
    assert len(ablate(small, without=["layer_norm"], seeds=1, resume=True)) == 2


@pytest.mark.slow
def test_run_that_diverges_is_reported(data, tmp_path):
    wild = spec(data, tmp_path, optimizer={"learning_rate": 1.0}, model={"num_layers": 6}, training={"steps": 12})
    effects = ablate(wild, without=["layer_norm"], seeds=2)
    assert [(effect.name, effect.diverged) for effect in effects] == [
        ("as the recipe says", 0),
        ("without layer_norm", 2),
    ]
    assert effects[1].mean == {}
    assert json.loads((tmp_path / "out" / "ablation.json").read_text())[1]["runs"] == [{}, {}]


def test_unknown_regularizers_are_refused(data, tmp_path):
    path = written(data, tmp_path)
    assert "unknown regularizer 'droput'; did you mean 'dropout'?" in refused("ablate", path, "--without", "droput")
    assert not (tmp_path / "out").exists()
    for options, message in [
        ({"without": ["dropout"]}, "dropout is already off in the recipe"),
        ({"with_": ["layer_norm"]}, "layer_norm is already on in the recipe"),
        ({"with_": ["distillation"]}, "distillation needs settings"),
        ({}, "nothing to compare"),
    ]:
        with pytest.raises(ValueError, match=message):
            ablate(spec(data, tmp_path), **options)
    with pytest.raises(ValueError, match=r"data.validation is missing"):
        ablate(recipe(data, "classification"), without=["layer_norm"])


@pytest.mark.parametrize(
    "name", [name for name in ablations() if name not in ("distillation", "attention_masking", "layer_norm")]
)
def test_disabled_regularizer_is_enabled_and_disabled_again(data, tmp_path, name):
    off = spec(data, tmp_path, regularize={"dropout": {"attention": 0.1}})  # r_drop wants some
    on = toggled(off, name, on=True)
    if name == "augmentation":
        assert on.regularize.augmentation == Augmentation(token_masking=0.1)
    if name == "early_stopping":
        assert on.regularize.early_stopping == EarlyStopping(patience=3)
    if name != "dropout":  # which is on already, elsewhere
        assert toggled(on, name, on=False) == off
    with pytest.raises(ValueError, match=f"{name} is already on in the recipe"):
        toggled(on, name, on=True)


@pytest.mark.parametrize("name", ["attention_masking", "layer_norm"])
def test_enabled_regularizer_is_disabled_and_enabled_again(data, tmp_path, name):
    on = spec(data, tmp_path)
    off = toggled(on, name, on=False)
    assert not getattr(off.regularize, name)
    assert toggled(off, name, on=True) == on


@pytest.mark.slow
def test_results_of_other_data_are_not_compared(data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    given = spec(tmp_path / "data", tmp_path, regularize={"dropout": 0.1})
    before = ablate(given, without=["dropout"])
    lines = (tmp_path / "data" / "a.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "data" / "a.tsv").write_text("".join(lines[::-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="contains a run on other data, which has changed since"):
        ablate(given, without=["dropout"], resume=True)
    (tmp_path / "data" / "a.tsv").write_text("".join(lines), encoding="utf-8")
    assert ablate(given, without=["dropout"], resume=True) == before
