"""A folder with other files than those of an index is not replaced, and no other command writes into an index."""

import os
import shutil
import stat

import pytest
from support.command import clearhead, refused
from support.data.training import write_tiny

from clearhead.io.locks import LOCK_NAME, writer_lock
from clearhead.retrieval.index import Index


@pytest.fixture
def index(tiny_bert, tmp_path):
    (tmp_path / "new.txt").write_text("a\nb\n")
    assert clearhead("index", tmp_path / "new.txt", "-m", tiny_bert, "-o", tmp_path / "index", "-q")[0] == 0
    return tmp_path / "index"


def overwrite(index, texts, model, run=refused):
    return run("index", texts, "-m", model, "-o", index, "--overwrite", "-q")


@pytest.mark.parametrize("name", ["in.txt", "data/in.txt", "vectors.npy"])
def test_other_files_are_kept(tiny_bert, index, tmp_path, name):
    (index / name).parent.mkdir(exist_ok=True)
    (index / name).write_text("hello world\n")
    error = overwrite(index, tmp_path / "new.txt", tiny_bert)
    assert f"{index} contains {name.partition('/')[0]}, which is not of the index and would be deleted" in error
    assert (index / name).read_text() == "hello world\n"
    assert len(Index.open(index)) == 2


def test_texts_behind_a_link_in_the_index_are_kept(tiny_bert, index, tmp_path):
    (index / "in.txt").write_text("hello world\n")
    (tmp_path / "link.txt").symlink_to(index / "in.txt")
    assert f"link.txt is an input inside the output {index}" in overwrite(index, tmp_path / "link.txt", tiny_bert)
    assert (index / "in.txt").read_text() == "hello world\n"


def test_model_inside_the_index_is_kept(tiny_bert, index, tmp_path):
    model = shutil.copytree(tiny_bert, index / "model")
    assert "contains model, which is not of the index" in overwrite(index, tmp_path / "new.txt", model)
    assert (model / "model.safetensors").is_file()


def test_training_does_not_start_in_an_index(index, tmp_path):
    error = refused("train", write_tiny(tmp_path, output=str(index)), "-q")
    assert f"{index} is an index, which is kept; choose another output" in error


def test_index_with_the_lock_of_another_process_is_not_replaced(tiny_bert, index, tmp_path):
    with writer_lock(index / "graph.json"):
        assert f"graph.json is being written by process {os.getpid()}" in overwrite(
            index, tmp_path / "new.txt", tiny_bert
        )


@pytest.mark.slow
def test_files_of_every_kind_of_index_are_known(tiny_bert, index, tmp_path):
    (index / ".graph.json.abcdefgh.part").touch()  # of a killed process
    for dtype in ("float32", "bfloat16", "int8"):
        arguments = ("index", tmp_path / "new.txt", "-m", tiny_bert, "-o", index, "--overwrite", "-q")
        assert clearhead(*arguments, "--dtype", dtype)[0] == 0
        assert clearhead("search", index, "a", "--approximate")[0] == 0
    assert overwrite(index, tmp_path / "new.txt", tiny_bert, clearhead)[0] == 0


@pytest.mark.skipif(os.name == "nt", reason="needs permissions of Unix")
def test_index_below_a_read_only_parent_has_the_lock_inside_only(index, tmp_path, monkeypatch):
    def open_unless_next_to_it(path, *arguments):
        if os.path.basename(path) in (".index.lock", ".new.lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments)

    opened = os.open
    monkeypatch.setattr(os, "open", open_unless_next_to_it)
    with writer_lock(index):
        assert (index / LOCK_NAME).is_file()
        assert not (tmp_path / ".index.lock").exists()
    with pytest.raises(PermissionError, match="new"), writer_lock(tmp_path / "new"):
        pass


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may write everywhere")
def test_append_below_a_read_only_parent(tiny_bert, index, tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert clearhead("index", tmp_path / "new.txt", "-m", tiny_bert, "-o", index, "--append", "-q")[0] == 0
    finally:
        tmp_path.chmod(stat.S_IRWXU)
    assert len(Index.open(index)) == 4


@pytest.mark.parametrize("option", ["--overwrite", "--append"])
def test_documents_of_the_index_are_not_its_input(tiny_bert, index, tmp_path, option):
    (tmp_path / "link.jsonl").symlink_to(index / "documents.jsonl")
    before = (index / "documents.jsonl").read_bytes()
    for source in (index / "documents.jsonl", tmp_path / "link.jsonl"):
        error = refused("index", source, "-m", tiny_bert, "-o", index, option, "-q")
        assert f"{source} is an input inside the output {index}; give another output" in error
    assert (index / "documents.jsonl").read_bytes() == before


def test_link_in_the_place_of_the_hidden_folder_is_refused(tiny_bert, tmp_path):
    (tmp_path / "texts.txt").write_text("a\n")
    (tmp_path / "other").mkdir()
    (tmp_path / ".new.part").symlink_to(tmp_path / "other")
    for command in (["index", tmp_path / "texts.txt", "-m", tiny_bert, "-o"], ["quantize", tiny_bert]):
        error = refused(*command, tmp_path / "new")
        assert f"{tmp_path / '.new.part'} is a link or a file in the place of a new folder; remove it" in error
