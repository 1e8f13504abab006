"""The command `benchmark`."""

import json
from pathlib import Path

import pytest
import torch
from support.command import clearhead, refused, started

from clearhead.runtime.precision import cpu_precisions, multiplies_bfloat16

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_encoding_is_measured_in_each_precision(tmp_path):
    path, picture = tmp_path / "a.json", tmp_path / "a.png"
    status, out, err = started(
        *("benchmark", "encode", "--number", "8", "--rounds", "2", "--threads", "1"),
        *("--json", str(path), "--plot", str(picture)),
    )
    assert status == 0, err
    lines = out.splitlines()
    assert lines[1].startswith("clearhead float32")
    assert lines[2].startswith("clearhead bfloat16")
    report = json.loads(path.read_text())
    assert report["texts"] == 8
    assert report["machine"]["threads"] == 1
    assert [figure["name"] for figure in report["figures"]] == [f"clearhead {name}" for name in cpu_precisions()]
    assert all(len(figure["rates"]) == 2 for figure in report["figures"])
    assert float(report["notes"]["clearhead bfloat16"].split()[1]) >= 0.9995
    assert picture.read_bytes().startswith(b"\x89PNG")
    texts = tmp_path / "a.txt"
    texts.write_text("one line\nanother\n\none line\n")
    status, _, err = started("benchmark", "encode", str(texts), "--rounds", "1", "--threads", "1")
    assert status == 0, err


@pytest.mark.slow
def test_benchmarks_of_empty_files_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("")
    for arguments, message in (
        (["encode", path], f"{path}: no text to encode"),
        (["train", path, path], f"{path} and {path} have no sentences"),
    ):
        status, _, err = clearhead("benchmark", *arguments)
        assert (status, err.splitlines()[-1]) == (1, f"clearhead: error: {message}")


@pytest.mark.slow
def test_generation_is_measured_in_both_precisions(tmp_path):
    path = tmp_path / "a.json"
    status, _, err = started(
        *("benchmark", "generate", "--number", "3", "--steps", "4", "--beam-size", "2", "--rounds", "1"),
        *("--threads", "1", "--json", str(path)),
    )
    assert status == 0, err
    report = json.loads(path.read_text())
    assert report["notes"]["clearhead float32"] == "3 of 3 equal"
    assert report["beam_size"] == 2


@pytest.mark.slow
def test_training_is_measured_with_a_baseline(tmp_path):
    path = tmp_path / "a.json"
    source, target = (ROOT / "recipes" / "tiny" / "data" / f"valid.{side}" for side in ("en", "de"))
    status, out, err = started(
        *("benchmark", "train", source, target, "--updates", "1", "--rounds", "1", "--threads", "1", "--json", path),
        *("--batch-tokens", "256"),
    )
    assert status == 0, err
    names = [line.split("  ")[0] for line in out.splitlines()[1:]]
    assert names[0] == "nn.Transformer float32"
    assert any("bfloat16" in name for name in names) == multiplies_bfloat16(torch.device("cpu"))
    report = json.loads(path.read_text())
    assert all(float(note.removeprefix("loss ")) < 12 for note in report["notes"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("encode", "--model", "no/such-model"), "no/such-model"),
        (("encode", "no-such-file.txt"), "no-such-file.txt"),
        (("encode", "--rounds", "0"), "--rounds"),
        (("generate", "--model", "all-MiniLM-L6-v2"), "encoder"),
        (("train", "no-such-file.txt", "other.txt"), "no-such-file.txt"),
    ],
)
def test_benchmark_errors(arguments, message):
    status, _, err = started("benchmark", *arguments)
    assert status != 0
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--plot", "a.jpg"), "a.jpg: expected the name of a PNG file, such as a.png"),
        (("--plot", "a.png", "--json", "a.png"), "a.png is the file of --json and of --plot; give two files"),
    ],
)
def test_wrong_outputs_are_refused_before_anything_is_measured(options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refused("benchmark", "encode", *options)
    assert list(tmp_path.iterdir()) == []
