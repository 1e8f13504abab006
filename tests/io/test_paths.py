"""Paths that are not UTF-8, lead through a file or lead nowhere, and errors about memory, which have no path."""

import functools
import os
import shutil
import sys

import pytest
from support.command import clearhead, refused
from support.models import families

from clearhead import memory
from clearhead.data.corpus import Corpus
from clearhead.io.json import path_text
from clearhead.retrieval.index import Index

NAME = os.fsdecode(b"caf\xe9")
"""A name in Latin-1."""


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / f"{NAME}.txt"
    try:
        path.write_text("hello world\n")
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    return path


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", f"{NAME}.npy"])
def test_texts_whose_name_is_not_utf8_are_encoded(tiny_bert, texts, tmp_path, name):
    assert clearhead("encode", texts, "-m", tiny_bert, "-o", tmp_path / name)[0] == 0
    assert (tmp_path / name).is_file()


def test_texts_whose_name_is_not_utf8_are_indexed(tiny_bert, texts, tmp_path):
    assert clearhead("index", texts, "-m", tiny_bert, "-o", tmp_path / NAME)[0] == 0
    assert len(Index.open(tmp_path / NAME)) == 1


def test_model_whose_path_is_not_utf8_is_refused(tiny_bert, texts, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / NAME)
    expected = f"{path_text(NAME)}/model.safetensors: the path is not UTF-8"
    for command in (("encode", texts, "-o", tmp_path / "v.npy"), ("lint",), ("trace", "hello")):
        assert expected in refused(*command, "-m", folder)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("to", ["transformers", "sentence-transformers", "onnx", "ctranslate2", "web"])
def test_export_to_a_path_that_is_not_utf8_is_refused(tiny_bert, tmp_path, to):
    expected = f"{path_text(NAME)}: the path is not UTF-8, which an export needs; give another OUT"
    assert expected in refused("export", tiny_bert, tmp_path / NAME, "--to", to)
    assert not (tmp_path / NAME).exists()


@pytest.mark.usefixtures("texts")
def test_quantized_copy_in_a_path_that_is_not_utf8_is_refused(tiny_bert, tmp_path):
    assert f"{path_text(NAME)}: the path is not UTF-8" in refused("quantize", tiny_bert, tmp_path / NAME)


def test_tokenizer_whose_path_is_not_utf8_is_written(texts, tmp_path):
    folder = tmp_path / NAME
    options = ("--vocab-size", 270, "-o", folder)
    status, out, err = clearhead("tokenizer", "train", texts, *options, hook=strict_output)
    assert status == 0, err
    assert out.endswith(f"to {path_text(folder)}\n")
    assert (folder / "tokenizer.json").is_file()


def strict_output():
    sys.stdout.reconfigure(errors="strict")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pipe")
def test_weights_in_a_pipe_are_refused(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    expected = f"{folder / 'model.safetensors'} is a pipe or a device; expected a file"
    assert expected in refused("encode", "-m", folder, "-o", tmp_path / "v.npy")


def test_empty_name_of_a_model_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("hello world\n")
    for command in (("encode", tmp_path / "a.txt"), ("index", tmp_path / "a.txt", "-o", tmp_path / "index")):
        assert "the name of the model is empty; give a folder or a Hub id" in refused(*command, "-m", "")


def test_output_below_a_file_is_refused(tiny_bert, tmp_path):
    (tmp_path / "a").write_text("hello world\n")
    expected = f"{tmp_path / 'a'}: Not a directory"
    assert expected in refused("export", tiny_bert, tmp_path / "a" / "b", "--to", "sentence-transformers")


def test_search_behind_a_link_names_the_index_that_a_killed_run_renamed(tiny_bert, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "index")
    (tmp_path / ".index.old").mkdir()
    assert f"left it as {tmp_path / '.index.old'}. Run it again" in refused("search", tmp_path / "link", "a")


def fail_to_read(error):
    def read(corpus, start=0):
        raise error

    Corpus.read = read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "an object could not be created"),
        (MemoryError("no memory for a layer"), "no memory for a layer"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "DefaultCPUAlloc"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "CUDA out of memory"),
    ],
)
def test_missing_memory_is_reported_in_one_line(tiny_bert, tmp_path, error, message):
    (tmp_path / "a.txt").write_text("hello world\n")
    arguments = ("encode", tmp_path / "a.txt", "-m", tiny_bert, "-o", tmp_path / "v.npy")
    hook = functools.partial(fail_to_read, error)
    assert f"clearhead: error: not enough memory: {message}" in refused(*arguments, hook=hook)


def without_memory():
    memory.available_memory = lambda device=None: 2**24


@pytest.mark.slow
@pytest.mark.parametrize("command", ["encode", "index", "classify", "translate"])
def test_text_that_the_memory_cannot_hold_is_named(tiny_bert, tmp_path, command):
    character = "x" if command == "translate" else "\0"  # WordPiece cuts long words
    (tmp_path / "a.txt").write_text("hello world\n" + character * 10**6 + "\nthe bridge\n")
    model = ("-m", tiny_bert) if command in ("encode", "index") else ()
    if command == "classify":
        families.make("bert", tmp_path / "classifier", "ForSequenceClassification")
        model = ("-m", tmp_path / "classifier")
    output = tmp_path / ("v.npy" if command == "encode" else "out")
    line = refused(command, tmp_path / "a.txt", *model, "-o", output, hook=without_memory)
    assert f"{tmp_path / 'a.txt'}, line 2: tokenizing a text of 1,000,000 characters" in line
