"""Read and write tensors as safetensors files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clearhead.io.atomic import atomic_file
from clearhead.io.folders import check_utf8
from clearhead.io.json import path_inside, read_json
from clearhead.io.reading import check_no_pipe


def read_weights(folder: Path) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a model folder in float32, and the path of their file for messages.

    The weights are in model.safetensors, or in the shards of model.safetensors.index.json.

    Raises:
        ValueError: the folder has no weights or only pickled ones; a shard is missing, or a file damaged.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    check_no_pipe(single)
    if single.is_file():
        return read_safetensors(single), str(single)
    if index.is_file():
        files = shards(index)
        tensors: dict[str, Tensor] = {}
        for shard in sorted(set(files.values())):
            tensors |= read_safetensors(shard)
        missing = sorted(set(files) - set(tensors))
        if missing:
            raise ValueError(f"{index} names tensor {missing[0]}, but {files[missing[0]].name} does not contain it")
        return tensors, str(index)
    if any(folder.glob("pytorch_model*.bin")):
        raise ValueError(
            f"{folder} has pickled weights only, and unpickling can run any code. "
            f"Run `clearhead convert {folder}`, which reads them safely and writes model.safetensors"
        )
    if any(folder.glob("*model.onnx")):
        raise ValueError(
            f"{folder} holds ONNX graphs, not weights. Run a translator with `clearhead translate --runtime onnx`"
        )
    raise ValueError(f"{folder} has no weights: no model.safetensors and no model.safetensors.index.json")


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file atomically."""
    with atomic_file(path) as file:
        file.write(save(dict(tensors), metadata={"format": "pt"}))


def weights_hash(tensors: Mapping[str, Tensor], start: bytes = b"") -> str:
    """Return the first 16 digits of a SHA-256 of tensors and their names. The name of a folder does not identify them.

    Args:
        tensors: the tensors.
        start: bytes to hash before them.

    >>> import torch; from clearhead.io.safetensors import weights_hash
    >>> weights_hash({"bias": torch.zeros(2)}) == weights_hash({"bias": torch.ones(2)})
    False
    """
    digest = hashlib.sha256(start)
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file in float32.

    Raises:
        ValueError: the file is truncated or damaged, or a pipe or a device, or its path is not UTF-8.
        OSError: the file does not exist or cannot be read.
    """
    check_no_pipe(path)
    check_utf8(path, "the library safetensors")
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                if not name.isprintable():
                    raise ValueError(f"{path} has a tensor with the name {name!r:.80}; expected printable characters")
            return {name: _float32(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    except SafetensorError as error:
        message = " ".join(str(error).split())[:_MAX_SHOWN]  # may repeat a part of the file
        raise ValueError(f"{path} is truncated, or not a safetensors file: {message}") from None


_MAX_SHOWN = 300
"""Maximum number of characters of the library's message."""


def _float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def shards(index: Path) -> dict[str, Path]:
    """Return the file of each tensor that an index of shards names.

    Raises:
        ValueError: the index is not valid, or names a file that is missing or outside the folder.
    """
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index} has no weight_map from tensors to files")
    paths = {name: path_inside(index, name) for name in set(names.values())}
    for name, path in paths.items():
        if not path.is_file():
            raise ValueError(f"{index.parent} has no {name!r}, which {index.name} names")
    return {tensor: paths[name] for tensor, name in names.items()}
