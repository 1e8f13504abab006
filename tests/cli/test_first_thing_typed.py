"""The first thing that people type: literal texts, tables, pipes, and runs that are started again."""

import json
import os
import pty
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest
from support.command import COMMAND, clearhead, refused, started

from clearhead.cli.inputs import is_file
from clearhead.cli.text import classify as classify_command
from clearhead.cli.text import translate as translate_command

TABLE = 'id,title,body\n1,A,"Hello, world"\n2,B,Good morning\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory, models):
    """Folder with links to models, and a table in each format."""
    folder = tmp_path_factory.mktemp("typed")
    for model in models.iterdir():
        (folder / model.name).symlink_to(model)
    (folder / "table.csv").write_text(TABLE)
    (folder / "table.tsv").write_text("id\ttitle\tbody\n1\tA\tHello, world\n2\tB\tGood morning\n")
    rows = [
        {"id": 1, "title": "A", "body": "Hello, world", "tags": ["x"], "score": 0.5},
        {"id": 2, "title": None, "body": "Good morning", "tags": [], "score": 2},
    ]
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(
        pyarrow.table({"id": [1, 2], "body": [row["body"] for row in rows]}), folder / "t.parquet"
    )
    (folder / "texts.txt").write_text("Hello, world\nGood morning\n")
    (folder / "named.csv").write_text("id,text\n1,Hello\n")
    (folder / "semicolons.csv").write_text("id;text\n1;Hello\n")
    (folder / "rows.json").write_text('[{"text": "Hello"}]')
    return folder


ENCODE = ("encode", "-m", "bert", "-q")
TRANSLATE = ("translate", "-m", "marian", "--max-new-tokens", "4", "--beam-size", "1")
CLASSIFY = ("classify", "-m", "classifier")
SUMMARIZE = ("summarize", "-m", "marian", "--max-new-tokens", "4", "--beam-size", "1")

# what is typed, standard input, and the number of lines printed
ANSWERED = {
    "encode a text": ((*ENCODE, "Hello, world"), "", 1),
    "encode two texts": ((*ENCODE, "Hello, world", "Good morning"), "", 2),
    "encode a file": ((*ENCODE, "texts.txt"), "", 2),
    "encode a pipe": (ENCODE, "Hello\nyou\n", 2),
    "encode a table with the column text": ((*ENCODE, "named.csv"), "", 1),
    "encode a column": ((*ENCODE, "table.csv", "--column", "body"), "", 2),
    "encode a column by number": ((*ENCODE, "table.tsv", "--column", "2"), "", 3),
    "encode and keep columns": ((*ENCODE, "table.jsonl", "--column", "body", "--keep", "id, title"), "", 2),
    "translate a text": ((*TRANSLATE, "Good morning"), "", 1),
    "translate a pipe": (TRANSLATE, "Good morning\n\nyou\n", 3),
    "translate a column": ((*TRANSLATE, "table.tsv", "--column", "body"), "", 2),
    "translate a Parquet file": ((*TRANSLATE, "t.parquet", "--column", "body"), "", 2),
    "translate and keep a column": ((*TRANSLATE, "table.csv", "--column", "body", "--json", "--keep", "id"), "", 2),
    "classify a text": ((*CLASSIFY, "What a film!"), "", 1),
    "classify a column": ((*CLASSIFY, "table.csv", "--column", "title"), "", 2),
    "summarize a text": ((*SUMMARIZE, "It rained all day. We stayed at home."), "", 1),
    "summarize a file": ((*SUMMARIZE, "texts.txt"), "", 1),
    "summarize a table": ((*SUMMARIZE, "table.jsonl", "--column", "body"), "", 2),
    "summarize and keep columns": (
        (*SUMMARIZE, "table.jsonl", "--column", "body", "--json", "--keep", "id,title"),
        "",
        2,
    ),
    "summarize a pipe": (SUMMARIZE, "It rained.\nWe stayed.\n", 1),
}
COLUMNS = "table.csv has the columns 'id', 'title', 'body'. Choose the texts with --column NAME"
# what is typed, and the error
REFUSED = {
    "encode a table": ((*ENCODE, "table.csv"), COLUMNS),
    "translate a table": ((*TRANSLATE, "table.csv"), COLUMNS),
    "classify a table": ((*CLASSIFY, "table.csv"), COLUMNS),
    "summarize a table": ((*SUMMARIZE, "table.csv"), COLUMNS),
    "train a tokenizer on a table": (
        ("tokenizer", "train", "table.csv", "--vocab-size", "300", "-o", "tokenizer"),
        COLUMNS,
    ),
    "a .jsonl without the column": ((*ENCODE, "table.jsonl"), "no column 'text'; it has: id, title, body, tags, score"),
    "a .parquet without the column": ((*TRANSLATE, "t.parquet"), "no column 'text'; it has: id, body"),
    "a misspelled column": ((*ENCODE, "table.csv", "--column", "bodi"), "did you mean 'body'?"),
    "a misspelled column to keep": ((*ENCODE, "table.csv", "--column", "body", "--keep", "titel"), "mean 'title'?"),
    "columns of a text file": ((*ENCODE, "texts.txt", "--column", "body"), "texts.txt has no columns"),
    "columns of a text": ((*TRANSLATE, "Hello there", "--column", "body"), "no file is named 'Hello there'"),
    "--keep without columns": ((*ENCODE, "Hello there", "--keep", "id"), "--keep is for files"),
    "--keep the vectors": ((*ENCODE, "table.csv", "--column", "body", "--keep", "embedding"), "already has a column"),
    "--keep a field": (
        (*TRANSLATE, "table.jsonl", "--column", "body", "--json", "--keep", "tokens"),
        "already has a column 'tokens'",
    ),
    "--keep in .npy": (
        (*ENCODE, "table.csv", "--column", "body", "--keep", "id", "-o", "v.npy"),
        "with --keep, write .jsonl or .parquet",
    ),
    "--keep in plain lines": ((*TRANSLATE, "table.csv", "--column", "body", "--keep", "id"), "--keep requires --json"),
    "a table with semicolons": ((*ENCODE, "semicolons.csv", "--column", "text"), "separated by semicolons; convert"),
    "a table with semicolons, without --column": ((*CLASSIFY, "semicolons.csv"), "separated by semicolons; convert"),
    "a JSON document": ((*ENCODE, "rows.json"), "expected a .jsonl file"),
    "more outputs than beams": (
        (*TRANSLATE, "Hello", "--n-best", "3"),
        "--n-best 3 requires 3 beams; the search has 1. Add --beam-size 3",
    ),
    "--split-sentences with several outputs": (
        ("translate", "-m", "marian", "Hello. You.", "--n-best", "2", "--split-sentences"),
        "--split-sentences cannot be used with --n-best",
    ),
    "a missing file": ((*TRANSLATE, "speech.txt"), "no such file: speech.txt"),
    "a text that looks like a file": ((*TRANSLATE, "and/or"), "If it is a text, send it to standard input"),
    "translate to Parquet": (
        (*TRANSLATE, "texts.txt", "-o", "out.parquet"),
        "lines of text, or JSON lines with --json",
    ),
    "classify to CSV": ((*CLASSIFY, "texts.txt", "-o", "out.csv"), "not .csv"),
    "summarize to JSON lines": ((*SUMMARIZE, "texts.txt", "-o", "out.jsonl"), "give --json to write JSON lines"),
    "a file and a text": ((*TRANSLATE, "Good morning", "texts.txt"), "give either files or texts"),
    "the input as output": ((*TRANSLATE, "texts.txt", "-o", "texts.txt"), "is also an input"),
    "classify without a model": (
        ("classify", "It rained."),
        "--model distilbert/distilbert-base-uncased-finetuned-sst",
    ),
    "summarize without a model": (("summarize", "It rained."), "--model sshleifer/distilbart-cnn-12-6"),
    "answer without a model": (("answer", "--question", "Who?", "--context", "It was I."), "--model distilbert/"),
    "--resume and --overwrite": ((*ENCODE, "texts.txt", "-o", "v.npy", "--resume", "--overwrite"), "not both"),
    "--write and --output": (("verify", "bert", "--write", "-o", "c.json"), "--write or --output, not both"),
    "--write into a package": (("verify", "tatoeba-en-de", "--write"), "is part of an installed package"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ANSWERED)
def test_what_is_typed_first_is_answered(folder, what):
    arguments, stdin, lines = ANSWERED[what]
    status, out, err = clearhead(*arguments, stdin=stdin.encode(), cwd=folder)
    assert status == 0, err
    assert out.count("\n") == lines, out


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_answered_is_refused_with_the_fix(folder, what):
    arguments, words = REFUSED[what]
    before = sorted(folder.iterdir())
    assert words in refused(*arguments, cwd=folder)
    assert sorted(folder.iterdir()) == before


def test_no_texts_have_no_summary(folder):
    status, out, err = clearhead("encode", "-m", "bert", stdin=b"", cwd=folder)
    assert (status, out, err) == (0, "", "clearhead: standard input contains no texts\n")


def test_wrong_command_lists_the_commands():
    status, out, err = started("translat", "Hello")
    assert (status, out) == (2, "")
    assert err.endswith("Did you mean 'translate', 'train'? clearhead -h lists the commands\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="the completion is for the shell that runs the command")
def test_completion_is_shown_for_the_shell_that_runs_the_command():
    script = f"{COMMAND} --show-completion; true"  # `; true`: bash stays the parent process
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert "complete -o default -F _clearhead_completion clearhead" in done.stdout, done.stderr


@pytest.mark.slow
def test_output_file_has_what_standard_output_has(folder, tmp_path):
    for command, run in ((TRANSLATE, started), (CLASSIFY, clearhead), (SUMMARIZE, clearhead)):
        _, expected, _ = clearhead(*command, "texts.txt", cwd=folder)
        status, out, err = run(*command, "texts.txt", "-o", tmp_path / "out.txt", cwd=folder)
        assert (status, out) == (0, ""), err
        assert (tmp_path / "out.txt").read_text() == expected


def test_failed_run_keeps_the_previous_output(folder, tmp_path):
    (tmp_path / "out.txt").write_text("previous\n")
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\n")
    refused(*TRANSLATE, tmp_path / "bad.txt", "-o", tmp_path / "out.txt", cwd=folder)
    assert (tmp_path / "out.txt").read_text() == "previous\n"


@pytest.mark.slow
def test_sentences_are_translated_one_by_one(folder, tmp_path):
    (tmp_path / "texts.txt").write_text("Hello there. How are you?\n\nDr. No is here.\n")
    status, out, err = clearhead(*TRANSLATE, tmp_path / "texts.txt", "--split-sentences", "--json", cwd=folder)
    assert status == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    _, alone, _ = clearhead(*TRANSLATE, "Hello there.", "How are you?", "", "Dr. No is here.", cwd=folder)
    parts = [[part["text"] for part in row["parts"]] for row in rows]
    assert [len(part) for part in parts] == [2, 1, 1]
    assert [text for part in parts for text in part] == alone.splitlines()
    assert [row["text"] for row in rows] == [" ".join(part) for part in parts]
    assert "several sentences" not in err  # only the bundled model is known to be trained on single sentences
    _, lines, _ = clearhead(*TRANSLATE, tmp_path / "texts.txt", "--split-sentences", cwd=folder)
    assert lines.splitlines() == [row["text"] for row in rows]


def test_translator_of_single_sentences_reports_several():
    _, _, err = clearhead("translate", "Good morning. It is raining.", "--beam-size", "1")
    assert "1 text has several sentences; this model was trained on single sentences" in err
    _, _, err = clearhead("translate", "Good morning!", "--beam-size", "1")
    assert err == ""


@pytest.mark.slow
def test_summaries_keep_columns(folder):
    arguments = ("table.jsonl", "--column", "body", "--json", "--keep", "id,tags")
    status, out, err = clearhead(*SUMMARIZE, *arguments, cwd=folder)
    assert status == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["id"], row["tags"], row["source"]) for row in rows] == [
        (1, ["x"], "table.jsonl, row 1"),
        (2, [], "table.jsonl, row 2"),
    ]
    error = refused(*SUMMARIZE, "texts.txt", "--json", "--keep", "id", cwd=folder)
    assert "texts.txt has no columns; --keep is for" in error
    error = refused(*SUMMARIZE, "table.jsonl", "--column", "body", "--json", "--keep", "parts", cwd=folder)
    assert "already has a column 'parts'" in error


@pytest.mark.slow
def test_kept_columns_stay_with_their_texts(folder, tmp_path):
    for name in ("v.jsonl", "v.parquet"):
        status, _, err = clearhead(
            *(*ENCODE, "table.jsonl", "table.jsonl", "--column", "body"),
            *("--keep", "id,title,tags,score", "-o", tmp_path / name),
            cwd=folder,
        )
        assert status == 0, err
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    once = [("Hello, world", 1, "A", ["x"], 0.5), ("Good morning", 2, None, [], 2)]
    assert [tuple(row[key] for key in ("text", "id", "title", "tags", "score")) for row in rows] == once * 2
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert [str(table.schema.field(name).type) for name in ("id", "title", "score")] == ["int64", "string", "double"]
    assert table["id"].to_pylist() == [1, 2, 1, 2]
    assert list(map(json.loads, table["tags"].to_pylist())) == [["x"], [], ["x"], []]
    assert np.array_equal(table["embedding"].to_pylist(), np.array([row["embedding"] for row in rows], np.float32))


@pytest.mark.slow
def test_each_line_typed_at_a_terminal_is_answered_at_once(folder):
    terminal, stdin = pty.openpty()
    with subprocess.Popen(
        [COMMAND, *TRANSLATE], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder
    ) as process:
        os.close(stdin)
        for line in (b"Hello\n", b"Good morning\n"):
            os.write(terminal, line)
            assert process.stdout.readline().endswith(b"\n")  # before the next line is typed
        os.write(terminal, b"\x04")
        process.wait(60)
        os.close(terminal)
    assert process.returncode == 0


def test_every_field_is_taken(folder):
    """A kept column cannot overwrite a field of the output."""
    for module, command in ((translate_command, TRANSLATE), (classify_command, CLASSIFY)):
        _, out, _ = clearhead(*command, "Hello", "--json", cwd=folder)
        assert set(json.loads(out)) <= set(module._FIELDS)


def test_python_dash_m_runs_the_command():
    done = subprocess.run([sys.executable, "-m", "clearhead", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("clearhead ")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        *[("-", True), ("notes.txt", True), ("data/notes", True), ("a b.csv", True), ("table.jsonl.gz", True)],
        *[("Hello", False), ("Good morning.", False), ("Is it 3.5 or 4?", False), ("and/or that", False)],
        *[("a\x00b", False), ("x" * 5000, False), ("", False)],
    ],
)
def test_text_or_file(argument, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_file(argument) == expected


def test_existing_file_is_read_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("one\n")
    assert is_file("notes")


def test_device_without_values(tiny_bert):
    for device in ("meta", "xla"):
        message = refused("encode", "hello", "-m", tiny_bert, "--device", device)
        assert f"device '{device}' cannot be used: " in message
        assert len(message) < 200
