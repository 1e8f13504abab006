"""What the injected faults found: temporary files that stayed, a nearly complete append, errors without a file."""

import dataclasses
import errno
import functools
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from support.command import clearhead, refused

from clearhead import Index, TextEncoder
from clearhead.io import folders
from clearhead.io.folders import atomic_folder
from clearhead.retrieval.canaries import CANARIES_FILE
from clearhead.retrieval.files import IndexWriter
from clearhead.retrieval.manifest import MANIFEST, PENDING, read_manifest


@pytest.fixture
def index(tiny_bert, tmp_path):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    (tmp_path / "new.txt").write_text("the old bridge\nwas closed\n")
    return Index.build(encoder, ["hello world"], tmp_path / "index")


def append(index, *flags):
    return ("index", "--append", "-o", index.folder, index.folder.parent / "new.txt", "-q", *flags)


def end_before_removal():
    """End this process when it removes the note of its run."""
    unlink = Path.unlink

    def end(path, **options):
        if path.name == PENDING:
            os._exit(9)
        unlink(path, **options)

    Path.unlink = end


def test_append_that_was_killed_before_its_note_was_removed(index, tmp_path):
    complete = shutil.copytree(index.folder, tmp_path / "complete")
    assert clearhead("index", "--append", "-o", complete, tmp_path / "new.txt", "-q")[0] == 0

    assert clearhead(*append(index), hook=end_before_removal)[0] == 9
    assert len(Index.open(index.folder)) == 3
    assert "has all documents of an interrupted run; complete it with --resume" in refused(*append(index))
    assert "complete it with --resume" in refused(*append(index, "--overwrite"))
    other = tmp_path / "other.txt"
    other.write_text("another text\n")
    assert "cannot be resumed" in refused("index", "--append", "-o", index.folder, other, "--resume")
    assert clearhead(*append(index, "--resume"))[0] == 0
    assert not (index.folder / PENDING).exists()
    for name in ("documents.jsonl", "vectors.float32"):
        assert (index.folder / name).read_bytes() == (complete / name).read_bytes()
    assert len(Index.open(index.folder)) == 3


def test_note_of_an_append_with_other_counts_is_refused(index):
    assert clearhead(*append(index), hook=end_before_removal)[0] == 9
    note = read_manifest(index.folder, PENDING)
    for truncated in ([7], -1, "1", 0.5, None):
        settings = {**note.settings, "stats": {**note.settings["stats"], "truncated": truncated}}
        dataclasses.replace(note, settings=settings).write(index.folder / PENDING)
        assert f"{index.folder / PENDING} is damaged" in refused(*append(index, "--resume"))
    for size in (-1, -(10**30)):
        files = {**note.files, "documents.jsonl": dataclasses.replace(note.files["documents.jsonl"], size=size)}
        dataclasses.replace(note, files=files).write(index.folder / PENDING)
        assert f"{index.folder / PENDING} is damaged" in refused(*append(index, "--resume"))
    dataclasses.replace(note, settings={**note.settings, "threads": "a\nb"}).write(index.folder / PENDING)
    assert "threads was " in refused(*append(index, "--resume"))


def test_temporary_files_of_an_index_are_removed(index):
    for name in (MANIFEST, PENDING):
        (index.folder / f".{name}.abcdefgh.part").write_text("{")
    (index.folder / ".graph.usearch.abcdefgh.part").write_text("x")
    assert clearhead(*append(index))[0] == 0
    index = Index.open(index.folder, index.encoder)
    assert index.search("hello", approximate=True)
    assert not list(index.folder.glob(".*.part"))
    assert len(json.loads((index.folder / MANIFEST).read_text())["files"]) == 5


def test_temporary_files_of_a_killed_build_are_not_in_the_index(tiny_bert, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("the old bridge\nwas closed\n")
    arguments = ("index", texts, "-m", tiny_bert, "-o", tmp_path / "out", "-q")
    assert clearhead(*arguments, hook=end_before_removal)[0] == 9
    for name in (MANIFEST, PENDING, CANARIES_FILE):
        (tmp_path / ".out.part" / f".{name}.abcdefgh.part").write_text("{")
    assert clearhead(*arguments, "--resume")[0] == 0
    assert not list((tmp_path / "out").glob(".*.part"))


def end_after_exchange():
    """End this process when the names of the new and the earlier folder are exchanged."""
    exchange = folders._exchange

    def end(*folders):
        exchange(*folders)
        os._exit(9)

    folders._exchange = end


@pytest.mark.skipif(sys.platform != "linux", reason="needs renameat2")
@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_index_that_a_killed_run_replaced_is_not_resumed(tiny_bert, index, tmp_path, flag):
    files = {path.name for path in index.folder.iterdir()}
    (index.folder / "graph.usearch").write_text("of the earlier index")
    arguments = ("index", tmp_path / "new.txt", "-m", tiny_bert, "-o", index.folder, "-q")
    assert clearhead(*arguments, "--overwrite", hook=end_after_exchange)[0] == 9
    assert len(Index.open(index.folder)) == 2
    shutil.rmtree(index.folder)  # what is left is the earlier index, under the name of an interrupted run
    assert clearhead(*arguments, flag)[0] == 0
    assert len(Index.open(index.folder)) == 2
    assert {path.name for path in index.folder.iterdir()} == files


def end_after_renames(count):
    """End this process after the renames of a folder, on a system that cannot exchange names."""
    rename, calls = os.rename, iter(range(1, 100))
    folders._exchange = lambda *folders: False

    def end(*paths):
        rename(*paths)
        if next(calls) == count:
            os._exit(9)

    os.rename = end


@pytest.mark.parametrize("count", [1, 2])
def test_index_is_complete_where_names_cannot_be_exchanged(tiny_bert, index, tmp_path, count):
    arguments = ("index", tmp_path / "new.txt", "-m", tiny_bert, "-o", index.folder, "-q", "--overwrite")
    assert clearhead(*arguments, hook=functools.partial(end_after_renames, count))[0] == 9
    if count == 1:
        assert f"left it as {index.folder.with_name('.index.old')}. Run it again" in refused(
            "search", index.folder, "a"
        )
    assert clearhead(*arguments)[0] == 0
    assert len(Index.open(index.folder)) == 2
    assert not list(tmp_path.glob(".index*"))


def test_index_behind_a_symbolic_link_is_replaced(tiny_bert, index, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(index.folder)
    for _ in range(2):
        arguments = ("index", tmp_path / "new.txt", "-m", tiny_bert, "-o", link, "-q", "--overwrite")
        assert clearhead(*arguments)[0] == 0
        assert link.is_symlink()
        assert len(Index.open(index.folder)) == 2
    assert not list(tmp_path.glob(".*"))


def fail_with_io_error(path, *others):
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def fail_at_exchange():
    folders._exchange = fail_with_io_error


def fail_to_undo(parent):
    """Let the sync of the parent fail after the exchange, and then the exchange back."""
    sync, exchange, calls = folders._sync, folders._exchange, iter(range(9))
    folders._sync = lambda path: fail_with_io_error(path) if path == parent else sync(path)
    folders._exchange = lambda *folders: fail_with_io_error(*folders) if next(calls) else exchange(*folders)


def refuse_to_write():
    IndexWriter.append = fail_with_io_error


@pytest.mark.skipif(sys.platform != "linux", reason="needs renameat2")
@pytest.mark.parametrize("exchanges", [True, False])
def test_complete_index_that_cannot_be_renamed_is_resumed_without_encoding(tiny_bert, index, tmp_path, exchanges):
    arguments = ("index", tmp_path / "new.txt", "-m", tiny_bert, "-o", index.folder, "-q")

    hook = functools.partial(fail_to_undo, index.folder.parent) if exchanges else fail_at_exchange
    status, _, error = clearhead(*arguments, "--overwrite", hook=hook)
    assert (status, error.count("\n")) == (1, 1)
    if exchanges:  # the new index has its place, and nothing was deleted
        assert len(Index.open(index.folder)) == 2
        assert len(Index.open(index.folder.with_name(".index.part"))) == 1
    else:
        assert len(Index.open(index.folder)) == 1
        shutil.rmtree(index.folder)
        assert clearhead(*arguments, "--resume", hook=refuse_to_write)[0] == 0
        assert len(Index.open(index.folder)) == 2


def test_convert_removes_the_temporary_file_of_a_killed_run(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    (tmp_path / ".model.safetensors.abcdefgh.part").write_text("x")
    assert clearhead("convert", tmp_path)[0] == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["model.safetensors", "pytorch_model.bin"]


def end_after_first_file():
    replace = os.replace

    def end(*paths):
        replace(*paths)
        os._exit(9)

    os.replace = end


def test_tokenizer_train_replaces_a_whole_tokenizer_or_none(tmp_path):
    (tmp_path / "texts.txt").write_text("the old bridge\n" * 9)
    arguments = ("tokenizer", "train", tmp_path / "texts.txt", "-o", tmp_path / "out", "--vocab-size")
    assert clearhead(*arguments, 300)[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("[!.]*")}
    assert clearhead(*arguments, 270, "--max-length", 9, hook=end_after_first_file)[0] == 9
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("[!.]*")} == before
    assert clearhead(*arguments, 270, "--max-length", 9)[0] == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    assert not list(tmp_path.glob(".out*"))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert "contains notes.txt; give a new or empty folder" in refused(*arguments, 300)


@pytest.mark.parametrize("name", [None, ".out.part", ".out.part/config.json"])
def test_errors_in_a_new_folder_name_the_output(tmp_path, name):
    path = tmp_path / name if name else None
    with pytest.raises(OSError, match="No space left") as caught, atomic_folder(tmp_path / "out"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    expected = tmp_path / "out" / "config.json" if name and "config" in name else tmp_path / "out"
    assert caught.value.filename == str(expected)
    assert not list(tmp_path.iterdir())
