"""`recipes/prepare.py` puts every row of small files in the published formats into exactly one split."""

import csv
import gzip
import importlib.util
import json
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3] / "recipes" / "prepare.py"


@pytest.fixture(scope="module")
def prepare():
    spec = importlib.util.spec_from_file_location("prepare", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put(path, rows):
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8", newline="\n")


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_every_row_is_in_one_split(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    put(tmp_path / "train.tsv", [f"text {number}\t{number % 2}" for number in range(1000)])
    put(tmp_path / "dev.tsv", ["held out\t1"])
    prepare.sst2(tmp_path, tmp_path / "out")
    train, valid = (prepare.lines(tmp_path / "out" / f"{name}.tsv") for name in ("train", "valid"))
    assert len(valid) == 692
    assert sorted(train + valid) == sorted(prepare.lines(tmp_path / "train.tsv"))

    with (tmp_path / "stsb-en-train.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([f"one, {number}", "two", "3.5"] for number in range(1000))
    prepare.stsb(tmp_path, tmp_path / "out")
    train, valid = (read(tmp_path / "out" / f"{name}.csv") for name in ("train", "valid"))
    assert train[0] == valid[0] == ["first", "second", "score"]
    assert sorted(train[1:] + valid[1:]) == sorted([f"one, {number}", "two", "3.5"] for number in range(1000))


def test_every_split_has_every_intent(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    rows = [[f"question {number},\nand more", f"intent {number % 7}"] for number in range(700)]
    with (tmp_path / "train.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "category"], *rows])
    prepare.banking77(tmp_path, tmp_path / "out")
    parts = [read(tmp_path / "out" / f"{name}.csv")[1:] for name in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [525, 35, 140]
    assert all(len({label for _, label in part}) == 7 for part in parts)
    assert sorted(row for part in parts for row in part) == sorted(
        [f"question {number}, and more", label] for number, (_, label) in enumerate(rows)
    )


def test_questions_keep_their_paragraphs(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    articles = [
        {
            "title": f"article {article}",
            "paragraphs": [
                {"context": f"{article} {number}", "qas": [{"id": f"{article} {number} {q}"} for q in range(9)]}
                for number in range(10)
            ],
        }
        for article in range(300)
    ]
    with gzip.open(tmp_path / "train-v1.1.json.gz", "wt", encoding="utf-8") as file:
        json.dump({"version": "1.1", "data": articles}, file)
    prepare.squad(tmp_path, tmp_path / "out")
    of = {}
    for name, expected in (("train", 20_000), ("valid", 1_000)):
        data = json.loads((tmp_path / "out" / f"{name}.json").read_text(encoding="utf-8"))["data"]
        paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]]
        assert sum(len(paragraph["qas"]) for paragraph in paragraphs) == expected
        assert all(one["id"].startswith(paragraph["context"]) for paragraph in paragraphs for one in paragraph["qas"])
        of[name] = {paragraph["context"].split()[0] for paragraph in paragraphs}
    assert not of["train"] & of["valid"]


def test_abstracts_are_joined(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    rows = [{"source": [f"First {number}.", " Second. "], "target": [" It. ", "No."]} for number in range(200)]
    put(tmp_path / "train.jsonl", [json.dumps(row) for row in rows])
    prepare.scitldr(tmp_path, tmp_path / "out")
    written = [
        json.loads(line) for name in ("train", "valid") for line in prepare.lines(tmp_path / "out" / f"{name}.jsonl")
    ]
    assert sorted(row["source"] for row in written) == sorted(f"First {number}. Second." for number in range(200))
    assert {row["target"] for row in written} == {"It."}


def test_preparing_a_data_set_is_deterministic(prepare, tmp_path):
    put(tmp_path / "train.tsv", [f"text {number}\t1" for number in range(700)])
    put(tmp_path / "dev.tsv", ["held out\t1"])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        prepare.DATA_SETS["sst2"](tmp_path, tmp_path / name)
    assert (tmp_path / "one" / "train.tsv").read_bytes() == (tmp_path / "two" / "train.tsv").read_bytes()
