"""Convert pickled PyTorch weights to safetensors without running the code in them."""

from pathlib import Path

import torch
from torch import Tensor

from clearhead.io.atomic import remove_leftovers
from clearhead.io.locks import writer_lock
from clearhead.io.pickle import read_pickle
from clearhead.io.safetensors import shards, write_weights
from clearhead.memory import check_memory


def convert(folder: Path) -> Path:
    """Convert the ``pytorch_model.bin`` of a folder, or its shards, to ``model.safetensors``.

    PyTorch's restricted reader (``weights_only=True``) reads the pickle and runs no code.

    Returns:
        The new file.

    Raises:
        ValueError: the file is missing, or contains anything other than tensors; model.safetensors exists already; the
            tensors do not fit the memory.
    """
    if not folder.is_dir():
        raise ValueError(f"no such model folder: {folder}")
    target = folder / "model.safetensors"
    with writer_lock(target):
        if target.exists():
            raise ValueError(f"{target} exists already; nothing was changed")
        remove_leftovers(target)
        tensors: dict[str, Tensor] = {}
        for path in _pickles(folder):
            tensors |= _read_pickle(path)
        if not tensors:
            raise ValueError(f"{folder}: the pickle contains no tensors")
        # a small file can hold a huge tensor that repeats one element
        check_memory(
            sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
            f"{folder}: a copy of all tensors of the pickle",
            "Ask the publisher for model.safetensors, or convert on a machine with more memory.",
        )
        # tied tensors share memory in a pickle, but not in a safetensors file
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
        raise ValueError(f"{path} contains more than named, dense tensors; it is not the state dict of a model")
    return loaded


def _is_plain(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and name != "__metadata__"  # reserved by safetensors
        and isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_meta
        and not value.is_quantized
    )
