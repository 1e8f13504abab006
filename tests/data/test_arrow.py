"""Folders in the layouts that Hugging Face `datasets` writes, made by hand."""

import json
import subprocess
import sys

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from support.data.dataset_folders import ROWS, save_dict, save_to_disk, shards, table, write_stream

from clearhead.cli.inputs import texts_of
from clearhead.data.arrow import arrow_rows
from clearhead.data.corpus import Corpus, is_table
from clearhead.data.dataset_folders import data_files
from clearhead.data.records import Records
from clearhead.data.tables import Column


def labeled(source, **options):
    return [(row.values["text"], row.values["label"]) for row in Records(source, fields=["text", "label"], **options)]


EXPECTED = [("a fine film", "good"), ("a dull film", "bad"), ("a film", "good")]


@pytest.mark.parametrize("described", [True, False], ids=["in the schema", "in dataset_info.json"])
@pytest.mark.parametrize("count", [1, 2])
def test_saved_dataset_is_read_in_order_with_the_names_of_its_labels(tmp_path, count, described):
    folder = save_to_disk(tmp_path / "films", shards=count, described=described)
    assert labeled(folder) == EXPECTED
    rows = list(Records(folder, fields=["text"]))
    assert rows[-1].location == f"{folder / f'data-{count - 1:05d}-of-{count:05d}.arrow'}, row {3 if count == 1 else 1}"
    assert list(Corpus([folder])) == [text for text, _ in EXPECTED]


def test_order_of_the_files_is_that_of_the_state(tmp_path):
    folder = save_to_disk(tmp_path / "films", shards=3)
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "cache-0a1b.arrow").write_bytes(b"not listed")
    assert labeled(folder) == EXPECTED[::-1]


def test_split_is_chosen_by_its_path(tmp_path):
    folder = save_dict(tmp_path / "films", "train", "test")
    assert labeled(folder / "test") == EXPECTED
    with pytest.raises(ValueError, match=r"films has the splits train, test; choose one, such as .*/films/train$"):
        labeled(folder)
    assert labeled(save_dict(tmp_path / "one", "train")) == EXPECTED


@pytest.mark.parametrize("inner", ["", "data"])
def test_parquet_shards_are_read_by_split(tmp_path, inner):
    folder = tmp_path / "films"
    shards(folder / inner, "train", 2)
    assert sorted(labeled(folder)) == sorted(EXPECTED)
    shards(folder / inner, "test", 1, ROWS[:1])
    assert sorted(labeled(folder / "train")) == sorted(EXPECTED)
    assert labeled(folder / "test") == EXPECTED[:1]
    with pytest.raises(ValueError, match="has the splits test, train; choose one"):
        labeled(folder)
    assert list(texts_of([str(folder / "test")])) == ["a fine film"]
    assert is_table(str(folder / "test"))


def test_numbered_parquet_files_are_one_split(tmp_path):
    (tmp_path / "train").mkdir()
    for number, row in enumerate(ROWS):
        pyarrow.parquet.write_table(table([row]), tmp_path / "train" / f"{number:04d}.parquet")
    assert labeled(tmp_path / "train") == EXPECTED


def test_parts_of_other_programs_are_one_split(tmp_path):
    for number in range(3):
        pyarrow.parquet.write_table(table(ROWS[number : number + 1]), tmp_path / f"part-0000{number}-c0.snappy.parquet")
    assert [path.name[:10] for path in data_files(tmp_path)] == ["part-00000", "part-00001", "part-00002"]
    (tmp_path / "part-00002-c0.snappy.parquet").rename(tmp_path / "test.parquet")
    with pytest.raises(ValueError, match="has the splits"):
        data_files(tmp_path)


def test_missing_files_are_named(tmp_path):
    shards(tmp_path / "hub", "train", 3)
    (tmp_path / "hub" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(ValueError, match="has 2 of the 3 .parquet files of train; the first missing one .* 00001"):
        labeled(tmp_path / "hub")
    folder = save_to_disk(tmp_path / "films", shards=2)
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(ValueError, match="state.json lists data-00001-of-00002.arrow, which is not in the folder"):
        labeled(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty is a folder; expected a text file, or a folder with .parquet files"):
        labeled(tmp_path / "empty")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "lists no files or splits"),
        ({"_data_files": []}, "lists no files or splits"),
        ({"_data_files": [{"filename": 1}]}, "lists no files or splits"),
        ({"_data_files": [{"filename": "../secret.arrow"}]}, "lists secret.arrow, which is not in the folder"),
        ({"_data_files": [{"filename": "a.arrow"}], "_indices_files": [{"filename": "b"}]}, "an index file"),
    ],
)
def test_unusable_states_are_refused(tmp_path, state, message):
    write_stream(tmp_path / "secret.arrow", table(ROWS))
    folder = save_to_disk(tmp_path / "films")
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match=message):
        labeled(folder)


def test_truncated_streams_are_refused(tmp_path):
    folder = save_to_disk(tmp_path / "films")
    path = folder / "data-00000-of-00001.arrow"
    whole = path.read_bytes()
    # at the end of a batch, in the middle of one, in the schema, and a text file
    for content in (whole[:-8], whole[:-60], whole[:20], b"a fine film\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="data-00000-of-00001.arrow is (not an Arrow file|damaged)"):
            labeled(folder)


def test_arrow_files_with_a_footer_are_read_too(tmp_path):
    content = table(ROWS)
    with pyarrow.ipc.new_file(str(tmp_path / "a.arrow"), content.schema) as writer:
        writer.write_table(content, max_chunksize=2)
    assert labeled(tmp_path / "a.arrow") == EXPECTED


def test_unknown_labels_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"row 2: column 'label' is null; expected a text or a number"):
        labeled(save_to_disk(tmp_path / "test", [("a film", 1), ("no label", -1)]))
    with pytest.raises(ValueError, match="column 'label' has the label 2, but the file names only 2 labels"):
        labeled(save_to_disk(tmp_path / "other", [("a film", 2)]))


def test_fields_of_structs_are_columns(tmp_path):
    pairs = [{"en": "a dog", "de": "ein Hund"}, None]
    write_stream(tmp_path / "a.arrow", pyarrow.table({"translation": pairs[:1]}))
    pyarrow.parquet.write_table(pyarrow.table({"id": [7], "translation": pairs[:1]}), tmp_path / "a.parquet")
    columns = {"source": "translation.en", "target": "translation.de"}
    for name in ("a.arrow", "a.parquet"):
        (row,) = Records(tmp_path / name, fields=["source", "target"], columns=columns)
        assert dict(row.values) == {"source": "a dog", "target": "ein Hund"}
        assert list(Corpus([tmp_path / name], column="translation.de")) == ["ein Hund"]
        with pytest.raises(ValueError, match="no column 'translation.fr'; it has: .*translation.en, translation.de"):
            Corpus([tmp_path / name], column="translation.fr")
        with pytest.raises(ValueError, match="column 'translation' has type struct<.*>; expected text"):
            Corpus([tmp_path / name], column="translation")
    pyarrow.parquet.write_table(pyarrow.table({"translation": pairs}), tmp_path / "null.parquet")
    with pytest.raises(ValueError, match="row 2: column 'translation.en' is null"):
        list(Corpus([tmp_path / "null.parquet"], column="translation.en"))


def test_first_answers_of_squad_are_columns(tmp_path):
    answers = [{"text": ["Ada", "Ada L."], "answer_start": [4, 4]}, {"text": [], "answer_start": []}]
    kind = pyarrow.struct([("text", pyarrow.list_(pyarrow.string())), ("answer_start", pyarrow.list_(pyarrow.int32()))])
    content = pyarrow.table(
        {
            "id": ["q1", "q2"],
            "context": ["Did Ada?", "Yes."],
            "question": ["Who?", "Why?"],
            "answers": pyarrow.array(answers, kind),
        }
    )
    write_stream(tmp_path / "a.arrow", content)
    pyarrow.parquet.write_table(content, tmp_path / "a.parquet")
    for name in ("a.arrow", "a.parquet"):
        rows = list(Records(tmp_path / name, fields=["question", "context", "answer", "answer_start"]))
        assert [tuple(row.values.values()) for row in rows] == [
            ("Who?", "Did Ada?", "Ada", "4"),
            ("Why?", "Yes.", "", "-1"),
        ]
    write_stream(tmp_path / "b.arrow", pyarrow.table({"answer": ["mine"], "answers": ["other"]}))
    assert list(Corpus([tmp_path / "b.arrow"], column="answer")) == ["mine"]
    with pytest.raises(ValueError, match="no column 'answer_start'"):
        Corpus([tmp_path / "b.arrow"], column="answer_start")


def test_progress_reaches_the_size_of_the_files(tmp_path):
    folder = save_to_disk(tmp_path / "films", shards=2)
    corpus, seen = Corpus([folder]), []
    for _ in corpus:
        seen.append(corpus.bytes_read)
    assert seen == sorted(seen)
    assert corpus.total_bytes is not None
    assert 0 < seen[0] < seen[-1] <= corpus.total_bytes
    assert corpus.bytes_read == corpus.total_bytes


def test_other_paths_are_unchanged(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    for path in (tmp_path / "a.txt", tmp_path / "nowhere.txt", tmp_path / "nowhere" / "train"):
        assert data_files(path) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("store_schema", [True, False], ids=["dictionary", "text"])
def test_rows_that_share_a_long_text_do_not_multiply_the_memory(tmp_path, store_schema):
    text, path = "a " * 2**19, tmp_path / "a.parquet"
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000, pyarrow.int32()), pyarrow.array([text]))
    pyarrow.parquet.write_table(
        pyarrow.table({"text": texts}),
        path,
        compression="zstd",
        store_schema=store_schema,
        dictionary_pagesize_limit=2**30,
    )
    assert path.stat().st_size < 10_000
    before, count = pyarrow.total_allocated_bytes(), 0
    for _, (value,) in arrow_rows(str(path), [Column("text")], allow_numbers=False):
        assert value == text
        assert pyarrow.total_allocated_bytes() - before < 2 * 2**28
        count += 1
    assert count == 1000


def kept(path, kind, values):
    column = pyarrow.array(values, kind)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * len(values), "at": column}), path)
    corpus = Corpus([path], keep=["at"])
    assert list(corpus) == ["a"] * len(values)
    return [row["at"] for row in corpus.take_kept(len(values))]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pyarrow.timestamp("ns"), "1970-01-01 00:00:00.000001001"),
        (pyarrow.time64("ns"), "00:00:00.000001001"),
        (pyarrow.duration("ns"), "1001"),
    ],
)
def test_nanoseconds_are_not_cut(tmp_path, kind, text):
    whole, none = kept(tmp_path / "a.parquet", kind, [1000, None])
    assert getattr(whole, "microsecond", None) == 1 or whole.microseconds == 1
    assert none is None
    assert kept(tmp_path / "a.parquet", kind, [1001])[0] == text
    assert kept(tmp_path / "a.parquet", pyarrow.list_(kind), [[1000]])[0] == [str(whole)]
    assert kept(tmp_path / "a.parquet", pyarrow.list_(kind), [[1001]])[0] == [text]
    struct = pyarrow.struct([("inner", kind)])
    assert kept(tmp_path / "a.parquet", struct, [{"inner": 1001}])[0] == {"inner": text}


@pytest.mark.parametrize("name", ["text", "other"])
def test_damaged_name_of_a_column_names_the_file(tmp_path, name):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "other": ["b"]}), path, store_schema=False)
    content, footer = path.read_bytes(), path.read_bytes().index(b"schema")
    in_schema, in_chunk = content.index(name.encode(), footer), content.rindex(name.encode())
    assert in_schema < in_chunk
    path.write_bytes(content[:in_schema] + b"\x9e" + content[in_schema + 1 :])
    with pytest.raises(ValueError, match=r"a\.parquet is not a Parquet file: 'utf-8' codec can't decode"):
        list(Corpus([path]))
    path.write_bytes(content[:in_chunk] + b"\x9e" + content[in_chunk + 1 :])
    assert list(Corpus([path])) == ["a"]  # the names of the schema count


FLIPPED = """
import sys
from pathlib import Path
from clearhead.data.records import Records
source, damaged = map(Path, sys.argv[1:])
data = bytearray(source.read_bytes())
footer = int.from_bytes(data[-8:-4], "little")
outcomes = {"read": 0, "refused": 0}
for place in range(len(data) - 8 - footer, len(data) - 8):
    for bit in range(8):
        data[place] ^= 1 << bit
        damaged.write_bytes(data)
        data[place] ^= 1 << bit
        try:
            list(Records(damaged, fields=["question", "answer"]))
            outcomes["read"] += 1
        except ValueError as error:
            assert str(damaged) in str(error)
            outcomes["refused"] += 1
print(outcomes)
"""


@pytest.mark.slow
def test_no_bit_of_a_parquet_file_s_metadata_ends_the_process(tmp_path):
    answers = [{"text": ["one", "two"], "answer_start": [0, 4]}, {"text": ["two"], "answer_start": [0]}]
    intact = pyarrow.table({"question": ["which ?", "why ?"], "answers": answers})
    pyarrow.parquet.write_table(intact, tmp_path / "a.parquet", store_schema=False)
    arguments = [sys.executable, "-c", FLIPPED, tmp_path / "a.parquet", tmp_path / "b.parquet"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'refused': 0" not in done.stdout
