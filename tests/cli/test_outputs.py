"""Output files of commands: what they may replace, and values of other columns that JSON or Parquet cannot hold."""

import contextlib
import datetime
import gzip
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import clearhead, refused
from support.models.overflow import everywhere, strict_json, translator

from clearhead.cli.outputs import write_results
from clearhead.data.corpus import Corpus
from clearhead.io.locks import writer_lock

GENERATE = ("--max-new-tokens", "4", "--beam-size", "1")

# a command, and the input that is also its output
INPUTS = {
    "translate": ("translate a.txt -m {0}/marian -o a.txt", "a.txt"),
    "translate --prefix": ("translate a.txt -m {0}/marian --prefix b.txt -o b.txt", "b.txt"),
    "classify": ("classify a.txt -m {0}/classifier -o a.txt", "a.txt"),
    "summarize": ("summarize b.txt a.txt -m {0}/marian -o a.txt", "a.txt"),
    "summarize, by another name": ("summarize a.txt -m {0}/marian -o link.txt", "link.txt"),
    "evaluate translation": ("evaluate translation a.txt -r b.txt -m {0}/marian -o a.txt", "a.txt"),
    "evaluate translation --reference": ("evaluate translation a.txt -r b.txt -m {0}/marian -o b.txt", "b.txt"),
    "evaluate summarization": ("evaluate summarization a.txt -r b.txt -m {0}/marian -o a.txt", "a.txt"),
    "evaluate summarization -r": ("evaluate summarization a.txt -r b.txt -m {0}/marian -o b.txt", "b.txt"),
    "evaluate answers": ("evaluate answers a.json -m {0}/bert -o a.json", "a.json"),
    "benchmark encode": ("benchmark encode a.txt -m {0}/bert --json a.txt", "a.txt"),
    "benchmark encode --plot": ("benchmark encode a.txt -m {0}/bert --plot a.txt", "a.txt"),
    "benchmark train": ("benchmark train a.txt b.txt --json b.txt", "b.txt"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_are_not_overwritten(models, tmp_path, name):
    arguments, output = INPUTS[name]
    (tmp_path / "a.txt").write_text("hello world\nthe bridge\n")
    (tmp_path / "b.txt").write_text("\nhello\n")
    (tmp_path / "link.txt").symlink_to("a.txt")
    squad = {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "a", "answers": []}]}]}]}
    (tmp_path / "a.json").write_text(json.dumps({"version": "v2.0", **squad}))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    error = refused(*arguments.format(models).split(), cwd=tmp_path)
    assert error == f"clearhead: error: {output} is also an input and would be overwritten; give another output\n"
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("view hello -m {0}/bert -o {1}", "bert/model.safetensors"),
        ("verify {0}/bert -o {1}", "bert/config.json"),
        ("translate a.txt -m {0}/marian -o {1}", "marian/vocab.json"),
        ("classify a.txt -m {0}/classifier -o {1}", "classifier/config.json"),
        ("translate a.txt -m {0}/marian -o {1}", "marian/source.spm"),
        ("view hello -m {0}/bert -o {1}", "run/state.ckpt"),
        ("translate a.txt -m {0}/marian -o {1}", "run/recipe.yaml"),
        ("encode a.txt -m {0}/bert -o {1}", "module/config.jsonl"),
        ("encode a.txt -m {0}/bert -o {1}", "index/documents.jsonl"),
        ("encode a.txt -m {0}/bert -o {1}", "index/new.jsonl"),
    ],
)
def test_files_of_models_and_indexes_are_not_overwritten(models, tmp_path, arguments, output):
    (tmp_path / "a.txt").write_text("hello world\n")
    for name in ("index/index.json", "index/documents.jsonl", "run/versions.json", "run/recipe.yaml", "run/state.ckpt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "modules.json").write_text("[]\n")
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "config.jsonl").write_text("{}\n")
    path = tmp_path / output if (tmp_path / output).parent.is_dir() else models / output
    before = path.read_bytes() if path.exists() else None
    error = refused(*arguments.format(models, path).split(), cwd=tmp_path)
    what = "is inside an index, which has only its own files"
    if "index" not in output:
        what = "may be a part of a model or a run and would be overwritten"
    assert error == f"clearhead: error: {path} {what}; give another output\n"
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.slow
def test_results_in_the_folder_of_a_model_are_replaced(models, tmp_path):
    (tmp_path / "a.txt").write_text("hello world\n")
    folder = shutil.copytree(models / "bert", tmp_path / "bert")
    for name in ("out.npy", "out.npy", "out.parquet", "out.parquet"):
        assert clearhead("encode", tmp_path / "a.txt", "-m", folder, "-o", folder / name)[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        "translate hello -m {0}/marian -o {1}",
        "classify hello -m {0}/classifier -o {1}",
        "summarize hello -m {0}/marian -o {1}",
        "view hello -m {0}/bert -o {1}",
        "verify {0}/bert -o {1}",
        "encode hello -m {0}/bert -o {1}",
    ],
)
def test_pipes_and_devices_are_not_replaced(models, tmp_path, arguments):
    pipe = tmp_path / "pipe.npy"
    os.mkfifo(pipe)
    error = refused(*arguments.format(models, pipe).split())
    assert error == f"clearhead: error: {pipe} is a device or a pipe, which a file would replace; give a file\n"
    assert pipe.is_fifo()


def test_documents_are_read_after_the_lock(models, tmp_path):
    (tmp_path / "a.txt").write_bytes("old".encode("utf-16"))
    with writer_lock(tmp_path / "out.txt"):
        error = refused("summarize", tmp_path / "a.txt", "-m", models / "marian", "-o", tmp_path / "out.txt")
    assert f"out.txt is being written by process {os.getpid()} since" in error


def test_files_of_killed_runs_are_removed(models, tmp_path):
    output = tmp_path / "out[1].txt"
    (tmp_path / ".out[1].txt.ab3d_fgh.part").write_text("left by a kill")
    kept = [".out[1].txt.abcd.txt.part", ".out[1].txt.part", ".out1.txt.abcdefgh.part"]  # of other outputs
    for name in kept:
        (tmp_path / name).write_text("kept")
    (tmp_path / ".out[1].txt.abcdefgh.part").mkdir()
    status, _, err = clearhead("translate", "hello", "-m", models / "marian", *GENERATE, "-o", output)
    assert status == 0, err
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, ".out[1].txt.abcdefgh.part", output.name])


ROWS = [
    {"text": "hello", "value": float("nan"), "list": [1, float("-inf")]},
    {"text": "the bridge", "value": float("inf"), "list": {"a": float("nan")}},
    {"text": "world", "value": 1.5, "list": None},
]


@pytest.mark.parametrize("kind", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("command", ["classify", "translate", "encode", "encode to a file"])
def test_kept_values_that_are_not_finite_are_null_in_json(models, tmp_path, kind, command):
    rows = [{**row, "list": [row["list"]]} if kind == "a.jsonl" else row for row in ROWS]
    if kind == "a.jsonl":
        (tmp_path / kind).write_text("".join(json.dumps(row) + "\n" for row in rows))
        lists = [[[1, None]], [{"a": None}], [None]]
    else:
        lists = [[1.0, None], [None], None]
        table = {name: [row[name] for row in ROWS] for name in ("text", "value")}
        table["list"] = pa.array([[1.0, float("-inf")], [float("nan")], None])
        pq.write_table(pa.table(table), tmp_path / kind)
    arguments = {
        "classify": ("classify", "-m", models / "classifier", "--json"),
        "translate": ("translate", "-m", models / "marian", "--json", *GENERATE),
        "encode": ("encode", "-m", models / "bert", "-q"),
        "encode to a file": ("encode", "-m", models / "bert", "-q", "-o", tmp_path / "v.jsonl"),
    }[command]
    status, out, err = clearhead(*arguments, tmp_path / kind, "--keep", "value,list")
    assert status == 0, err
    lines = [strict_json(line) for line in (out or (tmp_path / "v.jsonl").read_text()).splitlines()]
    assert [line["value"] for line in lines] == [None, None, 1.5]
    assert [line["list"] for line in lines] == lists


def test_kept_values_in_parquet(models, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    output = tmp_path / "v.parquet"
    arguments = ("encode", tmp_path / "a.jsonl", "-m", models / "bert", "-q", "-o", output, "--keep", "value,list")
    assert clearhead(*arguments) == (0, "", "")
    table = pq.read_table(output).to_pylist()
    assert str([row["value"] for row in table]) == "[nan, inf, 1.5]"
    assert [row["list"] for row in table] == ["[1, null]", '{"a": null}', None]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"\\ud800"', "column 'id' has half a surrogate pair, which is not valid Unicode"),
        ('["\\ud800"]', "column 'id' has half a surrogate pair, which is not valid Unicode"),
        ('{"\\ud800": 1}', "column 'id' has half a surrogate pair, which is not valid Unicode"),
    ],
)
def test_kept_values_that_are_not_unicode(models, tmp_path, value, message):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "hello", "id": 1}}\n{{"text": "hello", "id": {value}}}\n')
    for arguments in (
        ("classify", "-m", models / "classifier", "--json", "-o", tmp_path / "out.jsonl"),
        ("encode", "-m", models / "bert", "-o", tmp_path / "v.jsonl"),
        ("encode", "-m", models / "bert", "-o", tmp_path / "v.parquet"),
    ):
        error = refused(*arguments, tmp_path / "a.jsonl", "--keep", "id")
        assert f"{tmp_path / 'a.jsonl'}, line 2: {message}" in error
        assert os.listdir(tmp_path) == ["a.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [200, 800, 900, 950, 985])
def test_deeply_nested_kept_values(models, tmp_path, depth):
    value = "[" * depth + "]" * depth
    (tmp_path / "a.jsonl").write_text(f'{{"text": "hello", "id": {value}}}\n')
    for arguments in (
        ("classify", "-m", models / "classifier", "--json"),
        ("encode", "-m", models / "bert", "-q", "-o", tmp_path / "v.jsonl"),
        ("encode", "-m", models / "bert", "-q", "-o", tmp_path / "v.parquet"),
    ):
        status, _, err = clearhead(*arguments, tmp_path / "a.jsonl", "--keep", "id")
        if status:
            assert err.startswith(f"clearhead: error: {tmp_path / 'a.jsonl'}, line 1: "), err
            assert err.count("\n") == 1
        else:
            assert err == ""
        assert status == 0 or depth > 500


@pytest.mark.slow
def test_kept_dates_that_python_does_not_have(models, tmp_path):
    times = {
        "nanoseconds": pa.array([1_700_000_000_000_000_001, None], pa.timestamp("ns")),
        "microseconds": pa.array([datetime.datetime(2020, 1, 1), None]),
        "late": pa.array([2**42, 0], pa.timestamp("s")),
    }
    pq.write_table(pa.table({"text": ["hello", "world"], **times}), tmp_path / "a.parquet")
    status, out, err = clearhead(
        *("classify", "-m", models / "classifier", "--json", tmp_path / "a.parquet", "--keep", ",".join(times))
    )
    assert status == 0, err
    first, second = map(json.loads, out.splitlines())
    assert first["nanoseconds"] == "2023-11-14 22:13:20.000000001"
    assert first["microseconds"] == "2020-01-01 00:00:00"
    assert second["nanoseconds"] is None
    nested = pa.array([[1_700_000_000_000_000_001], []], pa.list_(pa.timestamp("ns")))
    pq.write_table(pa.table({"text": ["hello", "world"], "times": nested}), tmp_path / "b.parquet")
    arguments = ("classify", "-m", models / "classifier", "--json", tmp_path / "b.parquet", "--keep", "times")
    status, out, err = clearhead(*arguments)
    assert (status, err) == (0, "")
    assert json.loads(out.splitlines()[0])["times"] == ["2023-11-14 22:13:20.000000001"]


def test_no_output_of_a_model_that_overflows(tmp_path):
    (tmp_path / "model").mkdir()
    translator(tmp_path / "model")
    (tmp_path / "a.txt").write_text("hello\nstorm\n")
    (tmp_path / "out.txt").write_text("of an earlier run")
    for command in ("translate", "summarize"):
        error = refused(command, tmp_path / "a.txt", "-m", tmp_path / "model", "-o", tmp_path / "out.txt", *GENERATE)
        assert f"the model {tmp_path / 'model'} produced NaN or infinity" in error
        assert str(tmp_path / "a.txt") in error
        assert (tmp_path / "out.txt").read_text() == "of an earlier run"
        assert sorted(os.listdir(tmp_path)) == ["a.txt", "model", "out.txt"]


def test_trace_of_a_model_that_overflows_is_json(tmp_path, tiny_bert):
    shutil.copytree(tiny_bert, tmp_path / "model")
    everywhere(tmp_path / "model")
    status, out, err = clearhead("trace", "hello", "-m", tmp_path / "model", "--json", "--values")
    assert status == 0, err
    values = [step.get("values", {}) for step in strict_json(out)]
    assert any(None in statistics.values() for statistics in values)


def test_empty_documents_are_reported(models, tmp_path):
    summarize = ("summarize", "-m", models / "marian", *GENERATE)
    (tmp_path / "a.txt").write_text(" \n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b""))
    for name in ("a.txt", "a.txt.gz"):
        status, _, err = clearhead(*summarize, tmp_path / name)
        assert (status, err) == (0, f"clearhead: {tmp_path / name} contains no text\n")
    assert clearhead(*summarize)[2] == "clearhead: standard input contains no text\n"


def test_typed_texts_that_are_not_utf8(models):
    latin1 = os.fsdecode(b"caf\xe9")
    for arguments in (
        ("translate", "-m", models / "marian", "hello", latin1),
        ("classify", "-m", models / "classifier", "hello", latin1),
        ("encode", "-m", models / "bert", "hello", latin1),
        ("summarize", "-m", models / "marian", "hello", latin1),
    ):
        error = refused(*arguments)
        assert "argument 2 is not UTF-8 at character 4; type it in a UTF-8 terminal, or give a UTF-8 file" in error
    error = refused("answer", "-m", models / "bert", "--question", "who?", "--context", latin1)
    assert "the text is not UTF-8 at character 4" in error


def test_progress_moves_with_each_batch_and_ends_complete(tmp_path, monkeypatch):
    """Texts are read in one window and computed in several batches; an empty text is in no batch."""
    steps = []

    @contextlib.contextmanager
    def recorded(total, enabled, *, description):
        yield lambda done, tokens, texts: steps.append((done, tokens, texts))

    monkeypatch.setattr("clearhead.runtime.progress.token_progress", recorded)
    path = tmp_path / "texts.txt"
    path.write_text("one\ntwo\n\nthree\n")
    corpus = Corpus([path])

    def results(on_batch):
        texts = list(corpus)
        on_batch(2, 7)
        assert 0 < sum(done for done, _, _ in steps) < path.stat().st_size
        on_batch(1, 4)
        yield from texts

    written = write_results(corpus, tmp_path / "out.txt", results, lambda text, kept: text, description="")
    assert list(written) == ["one", "two", "", "three"]
    assert [sum(column) for column in zip(*steps, strict=True)] == [path.stat().st_size, 11, 4]
