"""Model folders made to harm: pickles that run code, names and links that lead out of the folder."""

import io
import os
import pickle
import shutil
import tarfile

import pytest
import torch
from support.command import refused
from support.training import trained_until, write_tiny
from support.training import tiny as tiny_recipe

ADVICE = ("weights_only", "add_safe_globals", "safe_globals", "arbitrary code execution", "Re-running", "trusted")


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return (os.system, (f"touch {self.flag}",))


def tar(bomb):
    """The format of torch before 0.1.10."""
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
DAMAGED = {
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


@pytest.mark.parametrize("kind", CODE)
def test_convert_runs_no_code_and_never_suggests_to(tmp_path, kind):
    flag = tmp_path / "ran"
    (tmp_path / "pytorch_model.bin").write_bytes(CODE[kind](Bomb(flag)))
    message = refused("convert", tmp_path)
    check(message, flag, "pytorch_model.bin", "code or objects other than tensors", "never runs", "safetensors")
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("kind", DAMAGED)
def test_convert_of_a_damaged_file(tmp_path, kind):
    (tmp_path / "pytorch_model.bin").write_bytes(DAMAGED[kind])
    check(refused("convert", tmp_path), tmp_path / "ran", "pytorch_model.bin", "damaged", "safetensors")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of which a checkpoint is written."""
    folder = tmp_path_factory.mktemp("begun")
    trained_until(tiny_recipe(folder), lambda step: step == 4)
    return folder


def test_a_resume_runs_no_code_and_never_suggests_to(begun, tmp_path):
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
