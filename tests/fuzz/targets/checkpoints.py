"""Damaged and hostile model folders of all families."""

import functools
import json
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

from support.models.all_kinds import LISTED, USES, prepare

from fuzz import mutations
from fuzz.outcomes import Case, CaseRandom, Target

DELETED = "deleted"
"""Stands for a key that is removed."""
KEY_VALUES: list[Any] = [
    *(DELETED, None, "x", "", "a\nb" * 300, -1, 0, 0.5, True, 2**31, 10**400, float("nan"), float("inf")),
    *({"x": 1}, ["x"], [[[[1]]]]),
]
"""Values of each key in the systematic cases."""
NAMED = (
    "num_beams in generation_config.json",
    "regularize.",
    "the context of pair 0",
    "the prompt takes",
    "/training-data/",
)
"""What an error may name in place of the folder: it is raised for a text, a batch or the training data."""
MAX_KEYS, MAX_INNER_KEYS = 60, 4
"""Number of keys of a file, and of an object in it, in the systematic cases: a vocabulary has thousands that are alike."""
_STRIDE = 999_983
"""A prime number, so that its multiples meet each case once."""


def make(originals: Path, random: Random, workspace: Path) -> Case:
    """Return a case: a copy of a model folder with one to three changes."""
    uses = _uses(originals)
    name = random.choice(sorted(uses))
    folder = workspace / name.replace(" ", "-")
    shutil.copytree(originals / name, folder)
    changes = [_change(folder, random) for _ in range(random.choice([1, 1, 1, 1, 2, 3]))]
    return Case(f"{name}: {'; '.join(changes)}", lambda: USES[uses[name]](folder), [str(folder), *NAMED])


def make_key(originals: Path, random: CaseRandom, workspace: Path) -> Case:
    """Return a case: a model folder with another value of one key of a JSON file.

    The cases go through all keys of all files of all folders with each of `KEY_VALUES`; any first part is spread evenly.
    """
    places = _places(originals)
    place, value_number = divmod(random.number * _STRIDE % num_keys(originals), len(KEY_VALUES))
    name, file, keys = places[place]
    value = KEY_VALUES[value_number]
    folder = workspace / name.replace(" ", "-")
    shutil.copytree(originals / name, folder)
    data = json.loads((folder / file).read_bytes())
    inner, key = mutations.get(data, keys[:-1]), keys[-1]
    if value is DELETED:
        del inner[key]
    else:
        inner[key] = value
    (folder / file).write_text(json.dumps(data))
    what = f"{name}: {file}: {'.'.join(map(str, keys))} = {value!r:.30}"
    return Case(what, lambda: USES[_uses(originals)[name]](folder), [str(folder), *NAMED])


def num_keys(originals: Path) -> int:
    """Return the number of cases of `make_key`: each key with each value."""
    return len(_places(originals)) * len(KEY_VALUES)


@functools.cache
def _places(originals: Path) -> list[tuple[str, str, tuple[Any, ...]]]:
    """Return the folder, file and path of each key of a JSON file, at any depth and also in lists."""
    found = []
    for name in sorted(_uses(originals)):
        for path in sorted((originals / name).rglob("*.json")):
            places = mutations.paths(json.loads(path.read_bytes()), limit=MAX_KEYS, inner_limit=MAX_INNER_KEYS)
            file = str(path.relative_to(originals / name))
            found += [(name, file, place) for place in places if place]
    return found


@functools.cache
def _uses(originals: Path) -> dict[str, str]:
    return json.loads((originals / LISTED).read_text())


def _change(folder: Path, random: Random) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o400)
    if not files:
        return "nothing"
    of_json = [path for path in files if path.suffix == ".json"]
    weights = [path for path in files if path.suffix == ".safetensors"]
    pickles = [path for path in files if path.suffix in (".bin", ".ckpt")]
    kind = random.choice(["json"] * 6 + ["tensors"] * 3 + ["header", "bytes", "bytes", "file"] + ["pickle"] * 2)
    if kind == "json" and of_json:
        path = _choose_json(of_json, random)
        try:
            data, what = mutations.change_value(json.loads(path.read_bytes()), random)
        except (ValueError, RecursionError):  # an earlier change
            return "nothing"
        path.write_bytes(mutations.json_text(data, random))
    elif kind == "tensors" and weights:
        path = random.choice(weights)
        what = _change_tensors(path, random)
    elif kind == "header" and weights:
        path = random.choice(weights)
        what = _change_header(path, random)
    elif kind == "file":
        path = random.choice(files)
        # a recipe may be a pipe, as of <(command)
        kinds = mutations.WITH_END + (() if path.name == "recipe.yaml" else mutations.WITHOUT_END)
        what = mutations.change_file(path, random, files, kinds)
    else:
        path = random.choice(pickles if kind == "pickle" and pickles else files)
        changed, what = mutations.change_bytes(path.read_bytes(), random)
        path.write_bytes(changed)
    return f"{path.relative_to(folder)}: {what}"


def _choose_json(files: list[Path], random: Random) -> Path:
    config = [path for path in files if path.name == "config.json"]
    return random.choice(config) if config and random.random() < 0.4 else random.choice(files)


def _change_tensors(path: Path, random: Random) -> str:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    try:
        tensors: dict[str, Any] = load_file(path)
    except (SafetensorError, OSError, KeyError, ValueError):  # an earlier change
        return "nothing"
    if not tensors:
        return "nothing"
    name, other = random.choice(sorted(tensors)), random.choice(sorted(tensors))
    tensor = tensors[name]
    kind = random.choice(["swap", "value", "value", "dtype", "shape", "shape", "delete", "add", "rename"])
    what = f"{kind} {name}"
    if kind == "swap":
        tensors[name], tensors[other] = tensors[other], tensor
        what += f" and {other}"
    elif kind == "value":
        value = random.choice([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45, 0.0, 1e4])
        flat = tensor.clone().reshape(-1)
        if flat.numel() and flat.is_floating_point():
            places = slice(None) if random.random() < 0.3 else random.randrange(flat.numel())
            flat[places] = value
        tensors[name] = flat.reshape(tensor.shape)
        what += f" {value}"
    elif kind == "dtype":
        dtype = random.choice(
            [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.complex64, torch.uint16]
        )  # fmt: skip
        tensors[name] = tensor.to(dtype)
        what += f" {dtype}"
    elif kind == "shape":
        shape = random.choice(["transposed", "flat", "extra", "empty", "scalar", "nested", "longer"])
        tensors[name] = {
            "transposed": lambda: tensor.movedim(0, -1).contiguous() if tensor.ndim else tensor,
            "flat": lambda: tensor.reshape(-1),
            "extra": lambda: torch.cat([tensor, tensor]) if tensor.ndim else tensor,
            "empty": lambda: tensor.new_zeros(0),
            "scalar": lambda: tensor.new_zeros(()),
            "nested": lambda: tensor[None],
            "longer": lambda: tensor.reshape(-1)[:-1].clone() if tensor.ndim else tensor,
        }[shape]()
        what += f" {shape}"
    elif kind == "delete":
        del tensors[name]
    elif kind == "add":
        tensors[random.choice([f"{name}.x", "x", f"model.{name}", f"bert.{name}", ""])] = tensor.clone()
    else:
        tensors[random.choice([name.upper(), f"x{name}", name.replace("0", "1"), "a\nb", name[:-1]])] = tensors.pop(
            name
        )
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, path)
    return what


def _change_header(path: Path, random: Random) -> str:
    """Change the JSON header of a safetensors file: dtypes, shapes and positions of tensors."""
    data = path.read_bytes()
    if len(data) < 8:
        return "nothing"
    (size,) = struct.unpack("<Q", data[:8])
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError):  # an earlier change
        return "nothing"
    header, what = mutations.change_value(header, random)
    text = mutations.json_text(header, random)
    if random.random() < 0.1:
        size = random.choice([0, 2**40, 2**63, 2**64 - 1, len(text) + 1])
        path.write_bytes(struct.pack("<Q", size) + text + data[8 + size :])
        return f"header of {size} bytes"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + struct.unpack("<Q", data[:8])[0] :])
    return f"header: {what}"


TARGET = Target(prepare, make)
KEYS_TARGET = Target(prepare, make_key, num_keys)
