"""Every command that writes files refuses an output that another process is writing, before it reads anything."""

import json
import os

import pytest
import torch
import typer
import yaml
from support.command import refused
from support.seq2seq import make
from support.training import told as training_recipe

from clearhead.cli.main import app
from clearhead.io.locks import folder_lock, writer_lock

READERS = {
    *("classify", "translate", "summarize", "answer", "serve", "trace", "lint"),
    *("evaluate similarity", "evaluate classification"),
}
"""Commands that write to standard output alone."""

# command: (its arguments, the output that is locked); {0} is the test's folder, {1} the output
FILES = {
    "encode": ("{0}/texts.txt -m {0}/bert -o {1}.npy", "out.npy"),
    "encode --resume": ("{0}/texts.txt -m {0}/bert --resume -o {1}.jsonl", "out.jsonl"),
    "view": ("hello -m {0}/bert -o {1}.html", "out.html"),
    "verify": ("{0}/bert -o {1}.json", "out.json"),
    "verify beside the weights": ("{0}/bert", "bert/certificate.json"),
    "convert": ("{0}/pickled", "pickled/model.safetensors"),
    "export": ("{0}/bert {1} --to transformers", "out"),
    "benchmark encode": ("-m {0}/bert --rounds 1 --number 8 --json {1}.json", "out.json"),
    "benchmark encode --plot": ("-m {0}/bert --rounds 1 --number 8 --plot {1}.png", "out.png"),
    "benchmark generate": ("-m {0}/marian --rounds 1 --json {1}.json", "out.json"),
    "benchmark train": ("{0}/texts.txt {0}/texts.txt --rounds 1 --json {1}.json", "out.json"),
    "evaluate translation": ("{0}/texts.txt -r {0}/texts.txt -m {0}/marian -o {1}.txt", "out.txt"),
    "evaluate summarization": ("{0}/texts.txt -r {0}/texts.txt -m {0}/marian -o {1}.txt", "out.txt"),
    "evaluate answers": ("{0}/squad.json -m {0}/bert -o {1}.json", "out.json"),
}
FOLDERS = {
    "encode --engine ray": ("{0}/texts.txt -m {0}/bert --engine ray -o {1}", "out"),
    "tokenizer train": ("{0}/texts.txt --vocab-size 300 -o {1}", "out"),
    "train": ("{0}/recipe.yaml output={1}", "out"),
    "train --resume": ("{0}/recipe.yaml output={1} --resume", "out"),
    "distill": ("{0}/distillation.yaml output={1}", "out"),
    "ablate": ("{0}/recipe.yaml output={1} --without dropout", "out"),
}


def commands(group, before=""):
    for command in group.registered_commands:
        yield f"{before}{command.name or command.callback.__name__}"
    for inner in group.registered_groups:
        yield from commands(inner.typer_instance, f"{before}{inner.name} ")


def test_every_command_is_listed_here():
    assert isinstance(app, typer.Typer)
    writers = {name.partition(" -")[0].removesuffix(" beside the weights") for name in (*FILES, *FOLDERS)}
    assert writers | READERS == set(commands(app))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert):
    folder = tmp_path_factory.mktemp("one-writer")
    (folder / "bert").mkdir()
    for path in tiny_bert.iterdir():
        (folder / "bert" / path.name).write_bytes(path.read_bytes())
    make("marian", folder / "marian", lively=True)
    (folder / "texts.txt").write_text("hello world\nthe old bridge\n", encoding="utf-8")
    (folder / "pickled").mkdir()
    torch.save({"weight": torch.ones(2)}, folder / "pickled" / "pytorch_model.bin")
    squad = {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "a", "answers": []}]}]}]}
    (folder / "squad.json").write_text(json.dumps({"version": "v2.0", **squad}))
    recipe = training_recipe(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    recipe["regularize"]["distillation"] = {"teacher": str(folder / "marian"), "sequence_level": True}
    (folder / "distillation.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_an_output_that_is_being_written_is_refused(folder, name):
    arguments, locked = {**FILES, **FOLDERS}[name]
    command = [*name.partition(" -")[0].removesuffix(" beside the weights").split(), *arguments.split()]
    output = folder / locked
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with (folder_lock if name in FOLDERS else writer_lock)(output):
        error = refused(*(part.format(folder, folder / "out") for part in command))
    assert f"{output} is being written by process {os.getpid()} since" in error
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }
