"""8-bit weights in a file next to a model's weights, so that loading does not have to calibrate."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from clearhead.io.atomic import atomic_file
from clearhead.io.safetensors import weights_hash
from clearhead.runtime.int8.gptq import QuantizedWeight
from clearhead.runtime.int8.quantize import quantize_model

FILE = "int8.safetensors"
"""Name of the file in a model's folder."""

MIN_COSINE = 0.998
"""`is_accurate`: smallest cosine of a sample text's outputs in 8 bits with those in float32."""

_FORMAT = "1"
_FIELDS = ("codes_NK", "scale_N", "outliers_J", "outlier_weight_JN")


@dataclass(frozen=True)
class Int8Source:
    """Source of a model's 8-bit weights: a file or a calibration run.

    Args:
        calibrate: runs the model on typical texts.
        file: a file that `write_int8` wrote; None to quantize the model.
    """

    calibrate: Callable[[], object]
    file: Path | None = None

    def weights(self, model: nn.Module) -> dict[int, QuantizedWeight]:
        """Return the 8-bit weights of the model by the `id` of their layer.

        Raises:
            ValueError: as in `read_int8`.
        """
        return quantize_model(model, self.calibrate) if self.file is None else read_int8(self.file, model)


def int8_file(folder: Path) -> Path | None:
    """Return the file of 8-bit weights in a folder, or None if it does not exist."""
    path = folder / FILE
    return path if path.is_file() else None


def write_int8(path: Path, model: nn.Module, weights: dict[int, QuantizedWeight], cosine: float) -> None:
    """Write 8-bit weights.

    Args:
        path: the file.
        model: the model that they were made from.
        weights: the weights by the `id` of their layer.
        cosine: smallest cosine of a sample text's outputs with those in float32.
    """
    tensors: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if id(module) in weights:
            tensors |= {f"{name}.{field}": getattr(weights[id(module)], field).contiguous() for field in _FIELDS}
    metadata = {"format": _FORMAT, "weights": _hash(model), "cosine": str(cosine)}
    with atomic_file(path) as file:
        file.write(save(tensors, metadata))


def read_int8(path: Path, model: nn.Module) -> dict[int, QuantizedWeight]:
    """Return the 8-bit weights of a model by the `id` of their layer.

    Raises:
        ValueError: the file is damaged, has another format, or was made from other weights.
    """
    metadata, tensors = _read(path)
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path} was written by another version of clearhead; run `clearhead quantize` again")
    if metadata.get("weights") != _hash(model):
        raise ValueError(f"{path} was made from other weights than those next to it; run `clearhead quantize` again")
    modules, names = dict(model.named_modules()), {name.rpartition(".")[0] for name in tensors}
    try:
        return {
            id(modules[name]): QuantizedWeight(*(tensors[f"{name}.{field}"] for field in _FIELDS)) for name in names
        }
    except KeyError as error:
        raise ValueError(f"{path} is damaged: {error} is missing; run `clearhead quantize` again") from None


def is_accurate(path: Path) -> bool:
    """Return whether 8-bit weights keep the outputs of the sample texts, as measured when they were made."""
    try:
        return float(_read(path, metadata_only=True)[0].get("cosine", "nan")) >= MIN_COSINE
    except ValueError:
        return False


def _read(path: Path, *, metadata_only: bool = False) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = [] if metadata_only else list(file.keys())
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}; run `clearhead quantize` again") from None


def _hash(model: nn.Module) -> str:
    with torch.no_grad():
        return weights_hash({name: tensor.float().cpu() for name, tensor in model.named_parameters()})
