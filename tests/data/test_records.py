"""Rows with named fields: files round-trip, and errors name file and line."""

import csv
import gzip
import hashlib
import io
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data.corpus import Corpus
from clearhead.data.records import Records, Row

line = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=12)
cell = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=12)
FIELDS = ["text", "label"]


def values(records):
    return [tuple(row.values.values()) for row in records]


def refused(words, source, fields=FIELDS, **options):
    with pytest.raises(ValueError, match=words):
        list(Records(source, fields=fields, **options))


def squad(answers):
    qas = [{"id": "q", "question": "Who?", "answers": answers}]
    return json.dumps({"data": [{"paragraphs": [{"context": "Ada did.", "qas": qas}]}]})


@given(rows=st.lists(st.tuples(line, line), min_size=1), end=st.sampled_from(["\n", "\r\n"]), packed=st.booleans())
def test_parallel_lines_stay_aligned(tmp_path_factory, rows, end, packed):
    folder = tmp_path_factory.mktemp("rows")
    files = {}
    for index, field in enumerate(["source", "target"]):
        files[field] = folder / (f"{field}.gz" if packed else field)
        body = ("".join(row[index] + end for row in rows)).encode()
        files[field].write_bytes(gzip.compress(body) if packed else b"\xef\xbb\xbf" + body)
    if packed and any("\ufeff" in row[0] or "\ufeff" in row[1] for row in rows[:1]):
        return  # a mark at the start of the text itself is taken for that of the file
    records = Records(files, fields=["target", "source"])
    expected = [{"target": target, "source": source} for source, target in rows]
    assert [dict(row.values) for row in records] == expected
    assert [dict(row.values) for row in records] == expected  # again
    assert [row.location for row in records] == [f"{files['target']}, line {n}" for n in range(1, len(rows) + 1)]


@given(st.lists(st.tuples(cell, cell), min_size=1))
def test_quoted_fields_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("label", "text"), *rows])
    path.write_bytes(text.getvalue().encode())
    result = values(Records(path, fields=FIELDS, columns={"text": "text", "label": "label"}))
    assert result == [(text, label) for label, text in rows]


@given(st.lists(st.tuples(cell, cell), min_size=1))
def test_json_lines_and_parquet_give_the_same(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "a.jsonl").write_text("".join(json.dumps({"label": b, "text": a}) + "\n\n" for a, b in rows))
    table = pyarrow.table({"text": [a for a, _ in rows], "label": [b for _, b in rows]})
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    assert values(Records([folder / "a.jsonl", folder / "a.parquet"], fields=FIELDS)) == rows * 2


def test_only_tabs_and_line_feeds_separate(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes('"a\x0b\x0c\x1c\u2028\t1\r\n\nb, \r b"\t\n'.encode())
    records = Records(path, fields=FIELDS)
    assert values(records) == [('"a\x0b\x0c\x1c\u2028', "1"), ('b, \r b"', "")]
    assert [row.location for row in records] == [f"{path}, line 1", f"{path}, line 3"]


def test_columns_by_name_and_by_number(tmp_path):
    for name, comma in (("a.csv", ","), ("a.tsv", "\t")):
        path = tmp_path / name
        path.write_text("id,label,text\n1,good,yes\n2,bad,no\n".replace(",", comma))
        assert values(Records(path, fields=FIELDS, columns={"label": "label"})) == [("yes", "good"), ("no", "bad")]
        numbered = Records(path, fields=FIELDS, columns={"text": 2, "label": 1})
        assert values(numbered) == [("text", "label"), ("yes", "good"), ("no", "bad")]
    (tmp_path / "a.jsonl").write_text('{"body": "yes", "label": 1}\n')
    assert values(Records(tmp_path / "a.jsonl", fields=FIELDS, columns={"text": "body"})) == [("yes", "1")]


def test_numbers_become_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": 5.0, "label": 123456789012345678901}\n')
    assert values(Records(tmp_path / "a.jsonl", fields=FIELDS)) == [("5.0", "123456789012345678901")]
    table = pyarrow.table({"text": pyarrow.array([0.1], pyarrow.float32()), "label": [-3]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert values(Records(tmp_path / "a.parquet", fields=FIELDS)) == [("0.1", "-3")]


def test_plain_lines_are_one_field(tmp_path):
    for name in ("a.txt", "train.en", "a.txt.gz"):
        (tmp_path / name).write_bytes(
            gzip.compress(b"one\r\r\n\ntwo\r") if name.endswith("gz") else b"one\r\r\n\ntwo\r"
        )
        assert values(Records(tmp_path / name, fields=["text"])) == [("one\r",), ("",), ("two\r",)]
    refused("one text per line, but expected 2 fields: text, label", tmp_path / "a.txt")
    refused("has no columns", tmp_path / "a.txt", ["text"], columns={"text": 0})


def test_pattern_selects_all_matching_files_in_order(tmp_path):
    for name in ("b-2.tsv", "b-1.tsv", "c.tsv"):
        (tmp_path / name).write_text(f"{name}\tx\n")
    assert values(Records(tmp_path / "b-*.tsv", fields=FIELDS)) == [("b-1.tsv", "x"), ("b-2.tsv", "x")]
    mixed = Records([tmp_path / "c.tsv", str(tmp_path / "b-[12].tsv")], fields=FIELDS)
    assert [text for text, _ in values(mixed)] == ["c.tsv", "b-1.tsv", "b-2.tsv"]
    (tmp_path / "[d].tsv").write_text("literal\tx\n")  # a name of an existing file is no pattern
    assert values(Records(tmp_path / "[d].tsv", fields=FIELDS)) == [("literal", "x")]
    refused(r"no file matches .*/e-\*\.tsv", tmp_path / "e-*.tsv")


def test_pattern_in_parallel_files(tmp_path):
    for name in ("1.en", "2.en", "1.de", "2.de"):
        (tmp_path / name).write_text(f"{name}\n")
    source = {"source": tmp_path / "*.en", "target": tmp_path / "*.de"}
    assert values(Records(source, fields=["source", "target"])) == [("1.en", "1.de"), ("2.en", "2.de")]


def test_home_folder_in_a_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("one\n")
    assert values(Records("~/a.txt", fields=["text"])) == [("one",)]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_squad_format(tmp_path, name):
    fields = ["question", "context", "answer", "answer_start"]

    def written(answers):
        raw = squad(answers).encode()
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
        return tmp_path / name

    path = written([{"text": "Ada", "answer_start": 0}, {"text": "did", "answer_start": 4}])
    (row,) = Records(path, fields=fields)
    assert row == Row(
        dict(zip(fields, ("Who?", "Ada did.", "Ada", "0"), strict=True)), f"{path}, data[0].paragraphs[0].qas[0]"
    )
    assert values(Records(written([]), fields=fields)) == [("Who?", "Ada did.", "", "-1")]
    refused(r'qas\[0\]\.answers\[0\] has no "answer_start" that is a number', written([{"text": "Ada"}]), fields)
    assert values(Records(path, fields=fields[:3], optional=fields[3:])) == [("Who?", "Ada did.", "Ada")]
    refused("the SQuAD format: no column 'text'; it has: question, context", path)
    (tmp_path / name).unlink()
    (tmp_path / "b.json").write_text('{"data": 3}')
    refused("b.json does not have the SQuAD format", tmp_path / "b.json", fields)


def test_optional_fields_may_be_absent(tmp_path):
    fields, optional = ["text"], ["label"]
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b", "label": null}\n{"text": "c", "label": "l"}\n')
    (tmp_path / "a.tsv").write_text("a\nb\nc\tl\n")
    (tmp_path / "a.txt").write_text("a\nb\n")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.tsv", "a.txt", "a.parquet"):
        rows = [dict(row.values) for row in Records(tmp_path / name, fields=fields, optional=optional)]
        assert rows == [{"text": "a"}, {"text": "b"}, {"text": "c", "label": "l"}][: len(rows)]
        assert len(rows) >= 2
    parallel = Records({"text": tmp_path / "a.txt"}, fields=fields, optional=optional)
    assert [dict(row.values) for row in parallel] == [{"text": "a"}, {"text": "b"}]
    (tmp_path / "b.csv").write_text("text,id\na,1\n")
    named = Records(tmp_path / "b.csv", fields=fields, columns={"text": "text"}, optional=optional)
    assert [dict(row.values) for row in named] == [{"text": "a"}]


def test_misaligned_files_are_refused_before_the_first_row(tmp_path):
    (tmp_path / "en").write_text("1\n2\n3\n4\n5\n6 is \u2028 here\n7\n", encoding="utf-8")
    (tmp_path / "de").write_text("1\n2\n3\n4\n5")
    source = {"source": tmp_path / "en", "target": tmp_path / "de"}
    with pytest.raises(ValueError, match=r"de has 5 lines, but .*en has 7: its line 6 is '6 is .+u2028 here'"):
        next(iter(Records(source, fields=["source", "target"])))
    # all files are checked before the first row; lines of the second files do not replace missing ones of the first
    source = {"source": [tmp_path / "en", tmp_path / "de"], "target": [tmp_path / "de", tmp_path / "en"]}
    refused("de has 5 lines", source, ["source", "target"])
    source = {"source": [tmp_path / "en", tmp_path / "en"], "target": [tmp_path / "en", tmp_path / "de"]}
    with pytest.raises(ValueError, match="de has 5 lines"):
        next(iter(Records(source, fields=["source", "target"])))
    refused("source has 2, target has 1", source | {"target": [tmp_path / "de"]}, ["source", "target"])


def test_bad_sources_are_refused_at_once(tmp_path):
    (tmp_path / "empty.tsv").touch()
    (tmp_path / "a.tsv").write_text("a\tb\n")

    def at_once(words, source, fields=FIELDS, **options):
        with pytest.raises(ValueError, match=words):
            Records(source, fields=fields, **options)

    at_once("no such file: .*none.tsv", tmp_path / "none.tsv")
    at_once("is a folder; expected a text file", tmp_path)
    at_once("empty.tsv is empty", [tmp_path / "a.tsv", tmp_path / "empty.tsv"])
    at_once("there are no files", [])
    at_once("encoding 'utf-9' is unknown", tmp_path / "a.tsv", encoding="utf-9")
    at_once("encoding 'rot13' is unknown", tmp_path / "a.tsv", encoding="rot13")
    at_once("encoding 'utf-16' cannot be read line by line", tmp_path / "a.tsv", encoding="utf-16")
    at_once(
        "no field 'labell'; did you mean 'label'",
        tmp_path / "a.tsv",
        columns={"labell": 1},
    )
    at_once("all names or all numbers", tmp_path / "a.tsv", columns={"text": 0, "label": "label"})
    at_once("count from 0; got -1", tmp_path / "a.tsv", columns={"text": 0, "label": -1})
    at_once("no number for the field 'label'", tmp_path / "a.tsv", columns={"text": 0})
    at_once("a.tsv is a table", {"text": tmp_path / "a.tsv"}, ["text"])
    (tmp_path / "a.txt").write_text("a")
    at_once("no file for the field 'label'", {"text": tmp_path / "a.txt"})
    at_once("no field 'x'; the fields are: text", {"x": tmp_path / "a.txt"}, ["text"])
    at_once("leave `columns` out", {"text": tmp_path / "a.txt"}, ["text"], columns={"text": 0})
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "label": [True]}), tmp_path / "a.parquet")
    at_once("column 'label' has type bool; expected text or numbers", tmp_path / "a.parquet")
    at_once("no column 'texts'; it has: text, label; did you mean 'text'", tmp_path / "a.parquet", ["texts"])
    at_once("has named columns", tmp_path / "a.parquet", columns={"text": 0, "label": 1})


@pytest.mark.parametrize(
    ("name", "content", "words", "columns"),
    [
        ("a.tsv", "a\tb\nc\n", "line 2 has 1 column; expected 2", None),
        ("a.tsv", "a\tb\nc\td\te\n", "line 2 has 3 columns; expected 2", None),
        ("a.tsv", "a\tb\n", "line 1 has 2 columns; expected column 4, counted from 0", {"text": 0, "label": 4}),
        ("a.csv", "text,category\na,b\n", "line 1 looks like a header, but it has no column label", None),
        (
            "a.csv",
            "text,lable\na,b\n",
            "no column 'label'; it has: text, lable; did you mean 'lable'",
            {"label": "label"},
        ),
        ("a.csv", "text,label,text\na,b,c\n", "has 2 columns named 'text'", {"label": "label"}),
        ("a.csv", "text,label\n", "has no rows", {"label": "label"}),
        ("a.csv", 'text,label\n"a\nb",c\nd\n', "line 4 has 1 column; its header has 2: text, label", {"text": "text"}),
        ("a.csv", "text,label\na,b,c\n", "line 2 has 3 columns; its header has 2", {"text": "text"}),
        ("a.csv", 'a,b\n\nc,"d\n' + "e,f\n" * 3, "the row that starts on line 3 cannot be read", None),
        ("a.csv", 'a,b\nc,"d" x\n', "the row that starts on line 2 cannot be read", None),
        (
            "a.jsonl",
            '{"text": "a", "label": null}',
            "line 1: column 'label' is null; expected a text or a number",
            None,
        ),
        ("a.jsonl", '{"text": "a", "label": true}', "line 1: column 'label' is bool", None),
        ("a.jsonl", '{"text": ["a"], "label": "b"}', "line 1: column 'text' is list", None),
        ("a.jsonl", '\n{"text": "a", "lable": "b"}', "line 2: no column 'label'; it has: text, lable; did", None),
        ("a.jsonl", '\n{"text": "a"', "line 2: not JSON", None),
        ("a.jsonl", '{"text": "a", "label": "b", "text": "c"}', "line 1: not JSON: the key 'text' is repeated", None),
        ("a.jsonl", "\n\n", "has no rows", None),
        ("a.tsv", b"a\tb\nc\xe9\td\n", r"line 2: not UTF-8 at byte 2 \(0xe9\); .* latin-1", None),
    ],
)
def test_bad_rows_name_file_and_line(tmp_path, name, content, words, columns):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(f"{name}.*{words}", path, columns=columns)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    refused(f"{name}.gz.*{words}", packed, columns=columns)


def test_old_encodings_and_broken_archives(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"caf\xe9\t1\n")
    assert values(Records(tmp_path / "a.tsv", fields=FIELDS, encoding="latin-1")) == [("café", "1")]
    for content in (b"a\tb\n", gzip.compress(b"a\tb\n" * 50)[:-9]):
        (tmp_path / "b.tsv.gz").write_bytes(content)
        refused("b.tsv.gz is (not gzip data|truncated, or not a gzip file)", tmp_path / "b.tsv.gz")


def test_fingerprint_changes_with_the_data(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("1\n")
    fields = ["source", "target"]
    source = {"source": tmp_path / "a", "target": tmp_path / "b"}
    descriptions = [
        Records(source, fields=fields).describe(),
        Records({"source": tmp_path / "b", "target": tmp_path / "a"}, fields=fields).describe(),
        Records(source, fields=fields, encoding="latin-1").describe(),
        Records(source, fields=fields[::-1]).describe(),
    ]
    for name in ("a", "b"):
        (tmp_path / name).write_text("12\n")
        descriptions.append(Records(source, fields=fields).describe())
    assert len({json.dumps(one) for one in descriptions}) == 6
    content = hashlib.sha256(b"12\n").hexdigest()
    assert descriptions[-1][0][:2] == [str((tmp_path / "a").resolve()), content]


def test_corpus_reads_columns_of_separated_values(tmp_path):
    (tmp_path / "a.csv").write_text('id,body\n1,"a\nb"\n')
    (tmp_path / "a.tsv").write_text("id\tbody\n1\tc\n")
    assert list(Corpus([tmp_path / "a.csv", tmp_path / "a.tsv"], column="body")) == ["a\nb", "c"]
    assert list(Corpus([tmp_path / "a.tsv"], column="1")) == ["body", "c"]
    with pytest.raises(ValueError, match=r"a\.tsv has the columns 'id', 'body'"):
        Corpus([tmp_path / "a.tsv"])
    with pytest.raises(ValueError, match=r"a\.csv: no column 'text'; it has: id, body"):
        list(Corpus([tmp_path / "a.csv"], column="text"))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    corpus = Corpus([tmp_path / "b.txt.gz"])
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\n" * 100))
    assert all(corpus.bytes_read <= corpus.total_bytes for _ in corpus)
    assert corpus.bytes_read == corpus.total_bytes


def test_header_with_all_fields_is_found(tmp_path):
    for name, comma in (("a.csv", ","), ("a.tsv", "\t")):
        path = tmp_path / name
        path.write_text("id,label,text\n1,good,yes\n2,bad,no\n".replace(",", comma))
        assert values(Records(path, fields=FIELDS)) == [("yes", "good"), ("no", "bad")]
        path.write_text("yes,good\nno,bad\n".replace(",", comma))
        assert values(Records(path, fields=FIELDS)) == [("yes", "good"), ("no", "bad")]
    path = tmp_path / "b.csv"
    path.write_text("text,label,extra\nyes,good\n")
    assert values(Records(path, fields=FIELDS)) == [("yes", "good")]
    path.write_text("text\nyes\n")
    assert values(Records(path, fields=FIELDS, optional=["label"])) == [("yes",)]
    path.write_text("text,text,label\na,b,good\n")
    refused("2 columns named 'text'", path)
