"""Vector files are written atomically."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest

from clearhead.corpus.writers import PartFile, check_output
from clearhead.io.atomic import atomic_file, atomic_folder

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
from clearhead.io import atomic
rename = os.rename
def once(*places):
    rename(*places)
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = once
with atomic.atomic_folder(Path(sys.argv[1])) as part:
    (part / "new.txt").write_text("new")
"""


def test_sigkill_between_folder_renames_loses_nothing(tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "old.txt").write_text("old", encoding="utf-8")
    assert subprocess.run([sys.executable, "-c", KILLED, folder], check=False).returncode == -signal.SIGKILL
    assert not folder.exists()
    with pytest.raises(ValueError, match="stop"), atomic_folder(folder):
        raise ValueError("stop")
    assert [path.name for path in folder.iterdir()] == ["old.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["all"]
