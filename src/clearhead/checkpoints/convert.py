"""Convert pickled PyTorch weights to safetensors without running the code in them."""

from pathlib import Path

import torch
from torch import Tensor

from clearhead.io.locks import writer_lock
from clearhead.io.pickle import read_pickle
from clearhead.io.safetensors import shards, write_weights


def convert(folder: Path) -> Path:
    """Writes a folder's ``pytorch_model.bin`` (or its shards) as ``model.safetensors`` beside it.

    The pickle is read by PyTorch's restricted reader (``weights_only=True``), which runs no code.

    Returns:
        The new file.

    Raises:
        ValueError: no such file, or one that holds anything but tensors.
    """
    if not folder.is_dir():
        raise ValueError(f"no such model folder: {folder}")
    target = folder / "model.safetensors"
    with writer_lock(target):
        if target.exists():
            raise ValueError(f"{target} exists already; nothing was changed")
        tensors: dict[str, Tensor] = {}
        for path in _pickles(folder):
            tensors |= _read_pickle(path)
        if not tensors:
            raise ValueError(f"{folder}: the pickle holds no tensors")
        # tied tensors share memory in a pickle; a safetensors file holds each by itself
        write_weights(target, {name: tensor.clone().contiguous() for name, tensor in tensors.items()})
    return target


def _pickles(folder: Path) -> list[Path]:
    index = folder / "pytorch_model.bin.index.json"
    if index.is_file():
        return sorted(set(shards(index).values()))
    if (folder / "pytorch_model.bin").is_file():
        return [folder / "pytorch_model.bin"]
    raise ValueError(f"{folder} has no pytorch_model.bin to convert")


def _read_pickle(path: Path) -> dict[str, Tensor]:
    advice = "Ask the publisher for model.safetensors, or download a damaged file again"
    try:
        loaded = read_pickle(path, advice)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing. {advice}") from None
    if not isinstance(loaded, dict) or not all(_is_plain(name, value) for name, value in loaded.items()):
        raise ValueError(f"{path} holds more than named, dense tensors; it is not a model's state dict")
    return loaded


def _is_plain(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and name != "__metadata__"  # safetensors keeps this name for itself
        and isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_meta
        and not value.is_quantized
    )
