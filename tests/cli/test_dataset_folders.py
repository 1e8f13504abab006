"""Commands read folders of Hugging Face `datasets`, and `evaluate classification` reads the columns of training."""

import csv
import json

import pyarrow.parquet
import pytest
import yaml
from support.command import clearhead, refused
from support.data.dataset_folders import save_dict, shards

ROWS = [("a fine film", 1), ("a dull film", 0), ("such a fine day", 1), ("such a dull day", 0)] * 8
TEXTS = [text for text, _ in ROWS]


def recipe(folder, **data):
    """Write a recipe that trains a classifier for four steps; return its path."""
    contents = {
        "task": "classification",
        "output": "run",
        "data": {"max_length": 16, "batch_size": 8, **data},
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 16, "ffn_hidden": 32, "num_heads": 2, "num_layers": 1, "max_len": 16},
        "training": {"steps": 4, "precision": "float32", "device": "cpu"},
        "validation": {"every": 4},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(contents))
    return "recipe.yaml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder with a classifier that was trained on a folder of `DatasetDict.save_to_disk`, and other such folders."""
    folder = tmp_path_factory.mktemp("datasets")
    save_dict(folder / "films", "train", "test", rows=ROWS)
    shards(folder / "hub" / "data", "train", 2, ROWS)
    shards(folder / "hub" / "data", "test", 1, ROWS[:4])
    status, out, err = clearhead("train", recipe(folder, train="films/train", validation="films/test"), cwd=folder)
    assert status == 0, err
    assert out.startswith("run  best weights: step 4  loss ")
    return folder


def test_labels_of_a_saved_dataset_are_the_names_of_its_classes(trained):
    config = json.loads((trained / "run" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}


@pytest.mark.slow
@pytest.mark.parametrize(("source", "count"), [("films/test", 32), ("hub/train", 32), ("hub/test", 4)])
def test_folders_are_read_by_the_commands(trained, source, count):
    status, out, err = clearhead("encode", source, "--model", "run", "-q", cwd=trained)
    assert status == 0, err
    assert sorted(json.loads(line)["text"] for line in out.splitlines()) == sorted(TEXTS[:count])
    status, out, err = clearhead("classify", source, "--model", "run", cwd=trained)
    assert status == 0, err
    assert {line.split("\t")[0] for line in out.splitlines()} <= {"bad", "good"}
    assert out.count("\n") == count
    status, out, err = clearhead("evaluate", "classification", source, "--model", "run", cwd=trained)
    assert status == 0, err
    assert f"({count} texts)" in out


def test_a_folder_with_several_splits_is_refused_with_their_names(trained):
    for command in (("encode", "films"), ("evaluate", "classification", "films"), ("classify", "films")):
        message = refused(*command, "--model", "run", cwd=trained)
        assert "films has the splits train, test; choose one, such as films/train" in message
    assert "hub has the splits test, train; choose one" in refused("encode", "hub", "--model", "run", cwd=trained)


@pytest.mark.slow
def test_a_tokenizer_is_trained_on_a_folder(trained):
    status, _, err = clearhead(
        *("tokenizer", "train", "films/train", "hub/train", "--vocab-size", 300, "-o", "tokenizer"), cwd=trained
    )
    assert status == 0, err


def evaluated(folder, *arguments):
    status, out, err = clearhead("evaluate", "classification", *arguments, "--model", "run", "--json", cwd=folder)
    assert status == 0, err
    return json.loads(out)


def write_table(path, names, rows):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([*names, *rows])


@pytest.mark.slow
def test_evaluation_finds_a_header_without_options_as_training_does(trained):
    labeled = [(number, ("bad", "good")[label], text) for number, (text, label) in enumerate(ROWS)]
    expected = evaluated(trained, "films/test")
    for suffix in (".csv", ".tsv"):
        write_table(trained / f"named{suffix}", [("id", "label", "text")], labeled)
        write_table(trained / f"plain{suffix}", [], [(text, label) for _, label, text in labeled])
        for name in (f"named{suffix}", f"plain{suffix}"):
            assert evaluated(trained, name) == expected
            status, _, err = clearhead("train", recipe(trained, train=name), f"output=run-{name}", "-q", cwd=trained)
            assert status == 0, err


@pytest.mark.slow
def test_evaluation_uses_the_columns_of_the_recipe(tmp_path):
    names = {"text": "review", "label": "stars"}
    rows = [(number, ("one", "five")[label], text) for number, (text, label) in enumerate(ROWS)]
    write_table(tmp_path / "train.csv", [("id", "stars", "review")], rows)
    pyarrow.parquet.write_table(
        pyarrow.table({"stars": [row[1] for row in rows], "review": TEXTS}), tmp_path / "test.parquet"
    )
    write_table(tmp_path / "other.csv", [("kind", "said")], [(label, text) for _, label, text in rows])
    status, _, err = clearhead("train", recipe(tmp_path, train="train.csv", columns=names), "-q", cwd=tmp_path)
    assert status == 0, err
    expected = evaluated(tmp_path, "train.csv")
    assert expected["texts"] == len(ROWS)
    assert evaluated(tmp_path, "test.parquet") == expected
    assert evaluated(tmp_path, "other.csv", "--column", "said", "--label-column", "kind") == expected
    message = refused("evaluate", "classification", "other.csv", "--model", "run", cwd=tmp_path)
    assert "other.csv: no column 'review'; it has: kind, said" in message
    (tmp_path / "run" / "recipe.yaml").write_text("columns: [flour, water]")  # of another program
    write_table(tmp_path / "plain.csv", [], [(text, label) for _, label, text in rows])
    assert evaluated(tmp_path, "plain.csv") == expected
