"""Malicious model folders: pickles with code, and paths and links out of the folder."""

import io
import json
import os
import pickle
import shutil
import struct
import tarfile

import pytest
import torch
from safetensors.torch import load_file
from support.command import clearhead, refused
from support.data.training import tiny as tiny_recipe
from support.data.training import trained_until, write_tiny

ADVICE = ("weights_only", "add_safe_globals", "safe_globals", "arbitrary code execution", "Re-running", "trusted")


class Bomb:
    """Object that runs a command when it is unpickled."""

    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return (os.system, (f"touch {self.flag}",))


def tar(bomb):
    """Format of torch before 0.1.10."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            content = pickle.dumps({"protocol_version": 1000, "little_endian": True, "a": bomb}, protocol=2)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return data.getvalue()


def saved(value, **options):
    data = io.BytesIO()
    torch.save(value, data, **options)
    return data.getvalue()


def script():
    data = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), data)
    return data.getvalue()


CODE = {
    "zip": lambda bomb: saved({"a": bomb}),
    "legacy": lambda bomb: saved({"a": bomb}, _use_new_zipfile_serialization=False),
    "protocol 2": lambda bomb: pickle.dumps({"a": bomb}, protocol=2),
    "protocol 4": lambda bomb: pickle.dumps({"a": bomb}, protocol=4),
    "tar": tar,
    "TorchScript": lambda bomb: script(),
    "module": lambda bomb: saved(torch.nn.Linear(2, 2)),
}


def with_another_weight():
    """Return a file with another bit in a tensor, which its checksum does not match."""
    data = bytearray(saved({"a": torch.full((9, 9), 2.0)}))
    data[data.index(struct.pack("<f", 2.0)) + 3] ^= 0x01
    return bytes(data)


DAMAGED = {
    "another weight": with_another_weight(),
    "truncated": saved({"a": torch.zeros(9, 9)})[:500],
    "truncated legacy": saved({"a": torch.zeros(9, 9)}, _use_new_zipfile_serialization=False)[:-200],
    "empty": b"",
    "zeros": bytes(500),
    "text": b"not a pickle",
}


def check(message, flag, *words):
    assert not flag.exists()
    for advice in ADVICE:
        assert advice not in message, message
    for word in words:
        assert word in message, message


@pytest.mark.slow
@pytest.mark.parametrize("kind", CODE)
def test_convert_runs_no_code_and_does_not_suggest_it(tmp_path, kind):
    flag = tmp_path / "ran"
    (tmp_path / "pytorch_model.bin").write_bytes(CODE[kind](Bomb(flag)))
    message = refused("convert", tmp_path)
    check(message, flag, "pytorch_model.bin", "code or objects other than tensors", "never runs", "safetensors")
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGED)
def test_convert_of_a_damaged_file(tmp_path, kind):
    (tmp_path / "pytorch_model.bin").write_bytes(DAMAGED[kind])
    check(refused("convert", tmp_path), tmp_path / "ran", "pytorch_model.bin", "damaged", "safetensors")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return a run with a checkpoint."""
    folder = tmp_path_factory.mktemp("begun")
    trained_until(tiny_recipe(folder), lambda step: step == 4)
    return folder


@pytest.mark.slow
def test_resume_runs_no_code_and_does_not_suggest_it(begun, tmp_path):
    shutil.copytree(begun / "run", tmp_path / "run")
    recipe, flag = write_tiny(tmp_path), tmp_path / "ran"
    state = tmp_path / "run" / "checkpoints" / "state.ckpt"
    for make in CODE.values():
        state.write_bytes(make(Bomb(flag)))
        message = refused("train", recipe, "--resume")
        check(message, flag, "state.ckpt", "code or objects other than tensors", "never runs", "start a new run")
    for content in DAMAGED.values():
        state.write_bytes(content)
        check(refused("train", recipe, "--resume"), flag, "state.ckpt", "damaged", "start a new run")


def shard(folder, name, index):
    """Write an index with one file for all weights of a folder; return the index and the file of the weights."""
    weights = folder / ("model.safetensors" if index.startswith("model") else "pytorch_model.bin")
    tensors = load_file(folder / "model.safetensors")
    if index.startswith("pytorch"):
        torch.save(tensors, weights)
        (folder / "model.safetensors").unlink()
    (folder / index).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, str(name))}))
    return weights


def opened(folder, index):
    """Read the weights in an index with the command for such a file; return its message or None."""
    command = ["encode", "--model", folder, "--quiet"] if index.startswith("model") else ["convert", folder]
    status, _, err = clearhead(*command, stdin=b"one\n")
    assert status in (0, 1), err
    assert err.count("\n") == 1 or command[0] == "encode", err
    return err if status else None


INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


@pytest.mark.slow
@pytest.mark.parametrize("index", INDEXES)
def test_index_of_shards_names_only_files_in_the_folder(tiny_bert, tmp_path, index):
    folder, outside = shutil.copytree(tiny_bert, tmp_path / "model"), tmp_path / "outside"
    outside.mkdir()
    weights = shard(folder, "../outside/a.bin", index)
    shutil.move(weights, outside / "a.bin")
    (folder / "linked.bin").symlink_to(outside / "a.bin")
    (folder / "relative.bin").symlink_to("../outside/a.bin")
    (folder / "linked").symlink_to(outside)
    (folder / "loop.bin").symlink_to("loop.bin")
    names = ("../outside/a.bin", str(outside / "a.bin"), "linked.bin", "relative.bin", "linked/a.bin", "x/../a.bin", "")
    for name in (*names, "..", ".", "/", "loop.bin", "a\0b"):
        content = json.loads((folder / index).read_text())["weight_map"]
        (folder / index).write_text(json.dumps({"weight_map": dict.fromkeys(content, name)}))
        message = opened(folder, index)
        assert message is not None, name
        assert index in message, message
        assert f"{name!r}" in message, message
        assert not (folder / "model.safetensors").exists()
    # files and links inside the folder are allowed
    shutil.move(outside / "a.bin", folder / "here.bin")
    (folder / "inner.bin").symlink_to("here.bin")
    for name in ("inner.bin", "here.bin"):
        (folder / index).write_text(json.dumps({"weight_map": dict.fromkeys(content, name)}))
        assert opened(folder, index) is None
        if index.startswith("pytorch"):
            (folder / "model.safetensors").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("index", INDEXES)
def test_hub_cache_with_symbolic_links(tiny_bert, tmp_path, index):
    cache = tmp_path / "models--someone--some-model"
    snapshot, blobs = cache / "snapshots" / "0123abc", cache / "blobs"
    blobs.mkdir(parents=True)
    shutil.copytree(tiny_bert, snapshot)
    weights = shard(snapshot, "weights-00001-of-00001", index)
    shutil.move(weights, snapshot / "weights-00001-of-00001")
    (snapshot / "1_Pooling").mkdir()
    (snapshot / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    (snapshot / "modules.json").write_text(json.dumps([TRANSFORMER, POOLING]))
    for number, path in enumerate([path for path in snapshot.rglob("*") if path.is_file()]):
        shutil.move(path, blobs / f"{number}")
        path.symlink_to(os.path.relpath(blobs / f"{number}", path.parent))
    # the snapshot itself, and a link to it
    (tmp_path / "link").symlink_to(snapshot)
    for folder in (snapshot, tmp_path / "link"):
        assert opened(folder, index) is None
        if index.startswith("pytorch"):
            (snapshot / "model.safetensors").unlink()
    # the folder of another model is outside
    other = tmp_path / "models--someone--other" / "blobs"
    other.mkdir(parents=True)
    shutil.copy(snapshot / "weights-00001-of-00001", other / "0")
    (snapshot / "weights-00001-of-00001").unlink()
    (snapshot / "weights-00001-of-00001").symlink_to(other / "0")
    message = opened(snapshot, index)
    assert message is not None
    assert "'weights-00001-of-00001'" in message


TRANSFORMER = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}


def test_modules_are_read_only_from_the_folder(tiny_bert, tmp_path):
    folder, outside = shutil.copytree(tiny_bert, tmp_path / "model"), tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text('{"pooling_mode": "cls"}')
    (folder / "linked").symlink_to(outside)
    for path in ("../outside", str(outside), "linked", "x/../../outside"):
        (folder / "modules.json").write_text(json.dumps([POOLING | {"path": path}]))
        message = refused("encode", "--model", folder, stdin=b"one\n")
        assert "modules.json" in message
        assert path in message, message
    shutil.copytree(outside, folder / "1_Pooling")
    (folder / "modules.json").write_text(json.dumps([TRANSFORMER, POOLING]))
    assert clearhead("encode", "--model", folder, stdin=b"one\n")[0] == 0
