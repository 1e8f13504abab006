"""8-bit weights in a file next to a model's weights, so that loading does not have to calibrate."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from clearhead.io.atomic import atomic_file
from clearhead.io.reading import check_no_pipe
from clearhead.io.safetensors import weights_hash
from clearhead.kernels.native import library
from clearhead.runtime.int8.gptq import LEVELS, QuantizedWeight
from clearhead.runtime.int8.quantize import quantizable, quantize_model, quantized_shape

log = logging.getLogger(__name__)

FILE = "int8.safetensors"
"""Name of the file in a model's folder."""

MIN_COSINE = 0.998
"""`is_accurate`: smallest cosine of a sample text's outputs in 8 bits with those in float32."""

MIN_MEAN_COSINE = 0.9995
"""`is_accurate`: smallest mean of these cosines over the sample texts."""

_FORMAT = "2"
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


def write_int8(path: Path, model: nn.Module, weights: dict[int, QuantizedWeight], cosines: Sequence[float]) -> None:
    """Write 8-bit weights.

    Args:
        path: the file.
        model: the model that they were made from.
        weights: the weights by the `id` of their layer.
        cosines: cosine of each sample text's outputs with those in float32.
    """
    tensors: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if id(module) in weights:
            tensors |= {f"{name}.{field}": getattr(weights[id(module)], field).contiguous() for field in _FIELDS}
    metadata = {
        "format": _FORMAT,
        "weights": _hash(model),
        "cosine": str(min(cosines)),
        "mean_cosine": str(sum(cosines) / len(cosines)),
    }
    with atomic_file(path) as file:
        file.write(save(tensors, metadata))


def read_int8(path: Path, model: nn.Module) -> dict[int, QuantizedWeight]:
    """Return the 8-bit weights of a model by the `id` of their layer.

    The kernels check no index or size, so that all shapes and values are compared with the model here.

    Raises:
        ValueError: the file is a pipe or damaged, has another format, or was made from other weights.
    """
    check_no_pipe(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"{path} was written by another version of clearhead; run `clearhead quantize` again")
            if metadata.get("weights") != _hash(model):
                raise ValueError(
                    f"{path} was made from other weights than those next to it; run `clearhead quantize` again"
                )
            fitting = {id(module) for module in quantizable(model)}
            layers = {name: module for name, module in model.named_modules() if id(module) in fitting}
            _check_names(file.keys(), layers)
            return {id(module): _read_weight(file, name, *quantized_shape(module)) for name, module in layers.items()}
    except (SafetensorError, OSError, _DamagedError) as error:
        raise ValueError(f"{path} is damaged: {error}; run `clearhead quantize` again") from None


def _check_names(names: Iterable[str], layers: Iterable[str]) -> None:
    found, expected = set(names), {f"{layer}.{field}" for layer in layers for field in _FIELDS}
    for name in sorted(expected - found):
        raise _DamagedError(f"{name} is missing")
    for name in sorted(found - expected):
        raise _DamagedError(f"{name} is not a tensor of this model's 8-bit weights")


def _read_weight(file: Any, layer: str, rows: int, columns: int) -> QuantizedWeight:
    """Return the weight (N, K) of a layer, whose shapes and dtypes are checked before anything is allocated."""
    names = {field: f"{layer}.{field}" for field in _FIELDS}
    headers = {field: file.get_slice(name) for field, name in names.items()}
    outliers = headers["outliers_J"].get_shape()
    if len(outliers) != 1 or outliers[0] > min(library.MAX_OUTLIERS, columns):
        raise _DamagedError(f"{names['outliers_J']} has the shape {outliers}")
    expected = {
        "codes_NK": ("I8", [rows, columns]),
        "scale_N": ("F32", [rows]),
        "outliers_J": ("I64", outliers),
        "outlier_weight_JN": ("F32", [*outliers, rows]),
    }
    for field, (dtype, shape) in expected.items():
        found = headers[field].get_dtype(), headers[field].get_shape()
        if found != (dtype, shape):
            raise _DamagedError(f"{names[field]} is {found[0]} {found[1]}, expected {dtype} {shape}")
    weight = QuantizedWeight(*(file.get_tensor(names[field]) for field in _FIELDS))
    in_range = {
        "codes_NK": weight.codes_NK.amin() >= -LEVELS,
        "scale_N": weight.scale_N.isfinite().all(),
        "outliers_J": weight.outliers_J.diff(prepend=torch.tensor([-1]), append=torch.tensor([columns])).gt(0).all(),
        "outlier_weight_JN": weight.outlier_weight_JN.isfinite().all(),
    }
    for field, valid in in_range.items():
        if not valid:
            raise _DamagedError(f"{names[field]} has a value that is out of range")
    return weight


class _DamagedError(Exception):
    """The tensors of a file do not fit the model."""


def is_accurate(path: Path) -> bool:
    """Return whether 8-bit weights keep the outputs of the sample texts, as measured when they were made.

    A warning says so if the file is damaged or was written by another version.
    """
    try:
        check_no_pipe(path)
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            log.warning("%s was written by another version of clearhead; run `clearhead quantize` again", path)
            return False
        return float(metadata["cosine"]) >= MIN_COSINE and float(metadata["mean_cosine"]) >= MIN_MEAN_COSINE
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        log.warning("%s is damaged (%s) and is not used; run `clearhead quantize` again", path, error)
        return False


def _hash(model: nn.Module) -> str:
    with torch.no_grad():
        return weights_hash({name: tensor.float().cpu() for name, tensor in model.named_parameters()})
