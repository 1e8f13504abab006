"""Write a model folder: config.json and model.safetensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from clearhead.io.json import write_json
from clearhead.io.safetensors import write_weights


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the config.json and model.safetensors of a model; create the folder if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", config)
