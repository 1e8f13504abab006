"""Columns of text, JSON and Parquet files."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from support.command import clearhead, refused

from clearhead.data.corpus import Corpus


def test_several_inputs_of_several_formats(tiny_bert, tmp_path):
    texts = ["hello", "world \u2028 this", "", "is", "a test"]
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"body": text, "id": 1}) + "\n" for text in texts[1:3]), encoding="utf-8"
    )
    table = pyarrow.table({"id": [1, 2], "body": pyarrow.array(texts[3:]).dictionary_encode()})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    inputs = [tmp_path / "b.jsonl", tmp_path / "c.parquet"]
    assert list(Corpus(inputs, column="body")) == texts[1:]
    assert list(Corpus([tmp_path / "a.txt", tmp_path / "a.txt"])) == ["hello", "hello"]
    status, out, err = clearhead(
        "encode", *inputs, "-m", tiny_bert, "-o", tmp_path / "v.jsonl", "--column", "body", "--json"
    )
    assert status == 0, err
    assert json.loads(out)["texts"] == 4
    rows = [json.loads(line)["text"] for line in (tmp_path / "v.jsonl").read_text().split("\n")[:-1]]
    assert rows == texts[1:]
    corpus = Corpus(inputs, column="body")
    list(corpus)
    assert corpus.bytes_read == corpus.total_bytes


def test_bad_columns_name_file_and_line(tmp_path):
    def check(name, words, column=None, content=None, table=None, command=False):
        path = tmp_path / name
        if content is not None:
            path.write_text(content)
        if table is not None:
            pyarrow.parquet.write_table(pyarrow.table(table), path)
        with pytest.raises(ValueError, match=words):
            list(Corpus([path], column=column))
        if command:
            assert words in refused("encode", path, "-o", tmp_path / "v.npy")

    check("a.jsonl", "line 2: no column 'text'; it has: body, id", content='{"text": "a"}\n{"body": "b", "id": 1}\n')
    check("b.jsonl", "line 1: column 'text' is int; expected a text", content='{"text": 3}\n')
    check("c.jsonl", "line 2: not JSON", content='{"text": "a"}\n{"text": \n')
    check("f.jsonl", "line 1: not JSON", content="[" * 100_000 + "\n")
    check("g.jsonl", "line 1: not JSON", content='{"text": "a", "n": ' + "1" * 5000 + "}\n")
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "f.parquet")
    check("f.parquet", "2 columns named 'text'")
    check("d.jsonl", r"line 1: a JSON list; expected an object", content="[1]\n")
    check("e.jsonl", "line 1: column 'text' has half a surrogate", content='{"text": "\\ud800"}\n')
    check("a.parquet", "no column 'text'; it has: body, id", table={"body": ["a"], "id": [1]}, command=True)
    check("b.parquet", "column 'text' has type int64; expected text", table={"text": [1, 2]}, command=True)
    check("c.parquet", "row 2: column 'text' is null", table={"text": ["a", None]})
    check("d.parquet", "is not a Parquet file", content="no")
    check("e.txt", "has no columns", content="a\n", column="text")
    # mixed schemas are found before anything is computed
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "good.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet: column 'text' has type int64"):
        Corpus([tmp_path / "good.parquet", tmp_path / "b.parquet"])


@pytest.mark.slow
def test_parquet_is_read_in_pieces(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x" * 200 + str(i) for i in range(150_000)]}), path)
    before = pyarrow.total_allocated_bytes()
    peak = 0
    for number, _ in enumerate(Corpus([path])):
        if number % 500 == 0:
            peak = max(peak, pyarrow.total_allocated_bytes() - before)
    assert peak < 150_000 * 200 / 4  # all of its text is 30 MB, and one row group


@pytest.mark.parametrize("change", ["cut", "appended"])
def test_input_that_changes_while_it_is_read_is_an_error(tmp_path, change):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    texts = iter(Corpus([path]))
    next(texts)
    with path.open("r+b") as file:
        file.truncate(800_000) if change == "cut" else (file.seek(0, 2), file.write(b"one more\n"))
    with pytest.raises(ValueError, match=r"a\.txt changed while it was read; start again when it is complete"):
        list(texts)
