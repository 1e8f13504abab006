"""Errors of the operating system while a file is read name the file, and a device is not read to its end."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.command import refused
from support.models import families

from clearhead import TextToText
from clearhead.generation.shortlist.shortlist import read_shortlist
from clearhead.io.reading import open_file, read_file
from clearhead.io.safetensors import read_safetensors
from clearhead.runtime.int8.files import is_accurate, read_int8

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/mem")

UNREADABLE = Path("/proc/self/mem")
"""A file whose first byte cannot be read: an I/O error."""


@pytest.mark.parametrize("read", [lambda file: file.read(), lambda file: file.read(4), lambda file: list(file)])
def test_reading_errors_have_the_path(read):
    with open_file(UNREADABLE) as file, pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        read(file)
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        read_file(UNREADABLE)


@pytest.fixture
def unreadable(tmp_path):
    def make(name):
        (tmp_path / name).symlink_to(UNREADABLE)
        return tmp_path / name

    return make


@pytest.mark.parametrize("name", ["bad.txt", "bad.txt.gz", "bad.csv", "bad.jsonl"])
def test_input_that_cannot_be_read_is_named(tiny_bert, unreadable, tmp_path, name):
    path = unreadable(name)
    assert f"{path}: Input/output error" in refused("encode", path, "-m", tiny_bert, "-o", tmp_path / "out.npy", "-q")


def test_error_has_one_line_even_if_the_name_has_two(tiny_bert, unreadable, tmp_path):
    path = str(unreadable("bad\nname.txt"))
    expected = f"clearhead: error: {path}: Input/output error\n".replace("bad\nname", "bad name")
    assert refused("encode", path, "-m", tiny_bert, "-o", tmp_path / "out.npy", "-q") == expected


@pytest.mark.slow
def test_each_command_names_the_input_that_cannot_be_read(tiny_bert, unreadable, tmp_path):
    text, table, data = unreadable("bad.txt"), unreadable("bad.csv"), unreadable("bad.json")
    (tmp_path / "classifier").mkdir()
    families.make("bert", tmp_path / "classifier", "ForSequenceClassification", num_labels=2)
    for command in (
        ("classify", text, "-m", tmp_path / "classifier", "-o", tmp_path / "out.txt"),
        ("index", text, "-m", tiny_bert, "-o", tmp_path / "index"),
        ("tokenizer", "train", text, "-o", tmp_path / "tokenizer", "--vocab-size", 300),
        ("translate", text, "-o", tmp_path / "out.txt"),
    ):
        assert f"{text}: Input/output error" in refused(*command)
    assert f"{table}: Input/output error" in refused("evaluate", "similarity", table, "-m", tiny_bert)
    assert f"{data}: Input/output error" in refused("evaluate", "answers", data, "-m", tiny_bert)
    assert f"{data}: Input/output error" in refused("train", data)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_model_file_that_cannot_be_read_is_named(tiny_bert, tmp_path, name):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    (folder / name).unlink()
    (folder / name).symlink_to(UNREADABLE)
    assert f"{folder / name}: " in refused("encode", "-m", folder, "-o", tmp_path / "out.npy")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_config_that_has_no_end_is_refused(tiny_bert, tmp_path, kind):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    (folder / "config.json").unlink()
    if kind == "pipe":
        os.mkfifo(folder / "config.json")
    else:
        (folder / "config.json").symlink_to("/dev/zero")
    expected = f"{folder / 'config.json'} is a pipe or a device; expected a file"
    assert expected in refused("encode", "-m", folder, "-o", tmp_path / "out.npy")


def test_pipes_in_the_place_of_other_weights_are_refused(tmp_path):
    """The library that reads them would wait for a writer."""
    pipe = tmp_path / "some.safetensors"
    os.mkfifo(pipe)
    translator = TextToText.from_pretrained()
    reads = [
        lambda: read_shortlist(pipe, translator.tokenizer, translator.model.config),
        lambda: read_int8(pipe, translator.model),
        lambda: read_safetensors(pipe),
    ]
    for read in reads:
        with pytest.raises(ValueError, match=f"{pipe} is a pipe or a device; expected a file"):
            read()
    assert is_accurate(pipe) is False
