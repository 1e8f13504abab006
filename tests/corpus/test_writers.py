"""Vector files are written atomically."""

import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow.parquet
import pytest

from clearhead import TextEncoder
from clearhead.corpus.encode import encode_corpus
from clearhead.corpus.writers import PartFile, check_output
from clearhead.data.corpus import Corpus
from clearhead.io import folders
from clearhead.io.atomic import atomic_file
from clearhead.io.folders import atomic_folder

TEXTS = ["plain", "", 'quote " and \\ and \n', "\u2028 😀 \x00"]
VECTORS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32) * [[1e-30], [1], [1e7], [-0.0]]
VECTORS = VECTORS.astype(np.float32)


def write(path, texts, vectors, window=3):
    part = PartFile(path, vectors.shape[1])
    part.open(0)
    for start in range(0, len(texts), window):
        chunk = texts[start : start + window]
        part.append(chunk, vectors[start : start + window], [{}] * len(chunk))
    part.finish(len(texts))
    part.remove()


@pytest.mark.parametrize("rows", [4, 0])
def test_written_texts_and_vectors_are_read_back_unchanged(tmp_path, rows):
    texts, vectors = TEXTS[:rows], VECTORS[:rows]
    for ending in (".npy", ".jsonl", ".parquet"):
        write(tmp_path / f"v{ending}", texts, vectors)
    assert np.array_equal(np.load(tmp_path / "v.npy"), vectors)
    np.save(tmp_path / "numpy", vectors)
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    (tmp_path / "numpy.npy").unlink()
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_bytes().decode().split("\n")[:-1]]
    assert [line["text"] for line in lines] == texts
    result = np.array([line["embedding"] for line in lines], dtype=np.float32).reshape(rows, 5)
    assert np.array_equal(result, vectors)
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert table["text"].to_pylist() == texts
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: float>[5]"
    result = np.array(table["embedding"].to_pylist(), dtype=np.float32).reshape(rows, 5)
    assert np.array_equal(result, vectors)
    assert sorted(os.listdir(tmp_path)) == ["v.jsonl", "v.npy", "v.parquet"]


def test_invalid_output_paths_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.npy, \.jsonl, \.parquet; got '\.csv'"):
        check_output(tmp_path / "v.csv")
    with pytest.raises(ValueError, match="does not exist"):
        check_output(tmp_path / "no" / "v.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        check_output(tmp_path / "folder.npy")


def test_error_keeps_the_previous_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("former")

    def write_half():
        with atomic_file(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "former"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_written_file_has_default_permissions(tmp_path):
    with atomic_file(tmp_path / "ours") as file:
        file.write(b"x")
    (tmp_path / "plain").write_bytes(b"x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


KILLED = """
import os, signal, sys
from pathlib import Path
from clearhead.io import folders
rename, exchange = os.rename, folders._exchange
def killed(function):
    def call(*places):
        function(*places)
        os.kill(os.getpid(), signal.SIGKILL)
    return call
if sys.argv[2] == "exchange":
    folders._exchange = killed(exchange)
else:
    folders._exchange, os.rename = lambda *places: False, killed(rename)
with folders.atomic_folder(Path(sys.argv[1])) as part:
    (part / "new.txt").write_text("new")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "old.txt").write_text("old", encoding="utf-8")
    return tmp_path / "all"


def kill_after_first(call, folder):
    done = subprocess.run([sys.executable, "-c", KILLED, folder, call], check=False)
    assert done.returncode == -signal.SIGKILL


def check_content(folder, name):
    """Check that the next call finds this file, and that it leaves nothing else in the parent."""
    with pytest.raises(ValueError, match="stop"), atomic_folder(folder):
        raise ValueError("stop")
    assert [path.name for path in folder.iterdir()] == [name]
    assert [path.name for path in folder.parent.iterdir()] == ["all"]


def test_sigkill_between_folder_renames_loses_nothing(folder):
    kill_after_first("rename", folder)
    assert not folder.exists()
    check_content(folder, "old.txt")


@pytest.mark.parametrize("exists", [True, False])
def test_the_parent_is_synced_after_the_rename(folder, monkeypatch, exists):
    synced, sync = [], folders._sync
    monkeypatch.setattr(
        folders, "_sync", lambda path: (sync(path), synced.append((path, (folder / "new.txt").exists())))
    )
    if not exists:
        shutil.rmtree(folder)
    with atomic_folder(folder) as part:
        (part / "new.txt").write_text("new", encoding="utf-8")
    assert [place.name for place, renamed in synced if not renamed] == ["new.txt", ".all.part"]
    assert [place for place, renamed in synced if renamed] == [folder.parent]


def test_folder_that_the_block_made_again_is_removed_after_an_error(folder, monkeypatch):
    def fail(*places):
        raise ValueError("stop")

    def make_again(part):
        part.rename(folder.parent / "other")  # so that the new folder has another number
        part.mkdir()

    monkeypatch.setattr(folders, "_exchange", fail)
    with pytest.raises(ValueError, match="stop"), atomic_folder(folder) as part:
        make_again(part)
    (folder.parent / "other").rmdir()
    assert [path.name for path in folder.parent.iterdir()] == ["all"]


def test_symbolic_link_to_a_folder_stays(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    for name in ("new.txt", "newer.txt"):
        with atomic_folder(tmp_path / "link") as part:
            (part / name).write_text(name, encoding="utf-8")
        assert [path.name for path in folder.iterdir()] == [name]
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "link"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs renameat2")
def test_folders_exchange_their_names_in_one_step(folder):
    kill_after_first("exchange", folder)
    assert [path.name for path in folder.iterdir()] == ["new.txt"]
    check_content(folder, "new.txt")


@pytest.mark.parametrize("exchanges", [True, False])
def test_folder_that_must_stay_is_restored_after_the_rename(folder, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(folders, "_exchange", lambda *places: False)
    elif sys.platform != "linux":
        pytest.skip("needs renameat2")

    def check(place):
        if place != folder:  # only after the rename
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"), atomic_folder(folder, check) as part:
        (part / "new.txt").write_text("new", encoding="utf-8")
    check_content(folder, "old.txt")


@pytest.mark.parametrize(
    ("windows", "column"),
    [
        ([2**60 + 1, 1.5], ["1152921504606846977", "1.5"]),  # their common type, double, cannot hold the first
        ([7, 1.5], [7.0, 1.5]),
        ([True, 3], ["true", "3"]),
        ([None, 3], [None, 3]),
        ([datetime.timedelta(days=1), "x"], ["86400000000", "x"]),
        ([float("nan"), 2**53 + 1], ["nan", "9007199254740993"]),
        ([datetime.datetime(2020, 1, 1), 1577836800], ["2020-01-01 00:00:00.000000", "1577836800"]),
        ([datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 7)], ["2020-01-01", "2020-01-01 07:00:00.000000"]),
        ([Decimal("1.5"), Decimal("0.001")], [Decimal("1.500"), Decimal("0.001")]),
    ],
)
def test_kept_columns_whose_type_changes_between_windows(tmp_path, windows, column):
    part = PartFile(tmp_path / "v.parquet", 5, ["id"])
    part.open(0)
    for number, value in enumerate(windows):
        part.append([TEXTS[number]], VECTORS[number : number + 1], [{"id": value}])
    part.finish(len(windows))
    assert pyarrow.parquet.read_table(tmp_path / "v.parquet")["id"].to_pylist() == column


_VALUES = [5, 2**53 + 1, 2**63, 1.5, float("nan"), True, "s", datetime.datetime(2020, 1, 1), datetime.date(2020, 1, 1)]
_VALUES += [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), datetime.time(1), datetime.timedelta(1), Decimal("1.5")]
_VALUES += [b"a", [1], {"a": 1}, None]


@pytest.mark.parametrize("first", _VALUES)
@pytest.mark.parametrize("second", _VALUES)
def test_kept_values_of_one_window_stay_or_become_text(tmp_path, first, second):
    part = PartFile(tmp_path / "v.parquet", 5, ["id"])
    part.open(0)
    part.append(TEXTS[:2], VECTORS[:2], [{"id": first}, {"id": second}])
    part.finish(2)
    values = pyarrow.parquet.read_table(tmp_path / "v.parquet")["id"].to_pylist()
    for value, written in zip((first, second), values, strict=True):
        is_text = isinstance(written, str) and value is not None
        assert is_text or written == value or (written != written and value != value), (value, written)


@pytest.mark.parametrize("other", ["v.npy.long.npy", "v.npy.abc2.npy"])
def test_run_keeps_the_part_files_of_other_outputs(tiny_bert, tmp_path, other):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")

    steps = []

    def interrupt(done, tokens, texts):
        steps.append(texts)
        if len(steps) > 1:  # the first window is recorded
            raise KeyboardInterrupt

    (tmp_path / "a.txt").write_text("hello\nworld\n")
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(encoder, Corpus([tmp_path / "a.txt"]), tmp_path / other, window_texts=1, on_step=interrupt)
    encode_corpus(encoder, Corpus([tmp_path / "a.txt"]), tmp_path / "v.npy")
    encode_corpus(encoder, Corpus([tmp_path / "a.txt"]), tmp_path / other, window_texts=1, resume=True)
    assert (tmp_path / other).read_bytes() == (tmp_path / "v.npy").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "v.npy", other]


def test_window_without_its_resume_file_is_not_announced(tiny_bert, tmp_path, monkeypatch, caplog):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    (tmp_path / "a.txt").write_text("hello\nworld\n")

    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("clearhead.corpus.encode.write_hashed_json", full)
    with pytest.raises(OSError, match="No space left"):
        encode_corpus(encoder, Corpus([tmp_path / "a.txt"]), tmp_path / "v.npy", window_texts=1)
    assert "--resume" not in caplog.text
    assert os.listdir(tmp_path) == ["a.txt"]
