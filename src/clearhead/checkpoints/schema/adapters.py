"""Low-rank adapters (LoRA) of a checkpoint, merged into its weights when it is loaded.

Equation: W′ = W + s · B A
Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", equation 3; s is α / r
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from clearhead.io.json import read_json
from clearhead.io.safetensors import read_safetensors

log = logging.getLogger(__name__)

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_ORIGINAL, _FACTORS = ".parametrizations.weight.original", ".parametrizations.weight.0.lora_"
_PLAIN_VALUES: Mapping[str, Sequence[object]] = {
    "peft_type": (None, "LORA"),
    "bias": (None, "none"),
    "use_dora": (None, False),
    "fan_in_fan_out": (None, False),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "trainable_token_indices": (None, [], {}),
}
"""Settings of PEFT that change the merged weights, with the values that are supported."""


def find_adapter(folder: Path, names: Sequence[str], adapter: str | None) -> str | None:
    """Return the adapter with a name, in which "." and "-" count as "_"; None for None.

    Args:
        folder: the model folder, for messages.
        names: the names of its adapters.
        adapter: the name to find. Without one, a folder with adapters is loaded without them, which is logged.

    Raises:
        ValueError: there is no such adapter.
    """
    if adapter is None:
        if names:
            log.info("%s has the adapters %s; none is merged", folder, ", ".join(names))
        return None
    for name in names:
        if plain_name(name) == plain_name(adapter):
            return name
    expected = f"Use one of: {', '.join(names)}" if names else "It has no adapters"
    raise ValueError(f"{folder} has no adapter {adapter!r}. {expected}")


def plain_name(adapter: str) -> str:
    """Return the name of an adapter as the name of a folder.

    >>> plain_name("text-matching")
    'text_matching'
    """
    return adapter.replace(".", "_").replace("-", "_")


def adapter_folders(folder: Path) -> list[str]:
    """Return the names of the folders of PEFT adapters in a model folder."""
    return sorted(path.parent.name for path in folder.glob(f"*/{_CONFIG}"))


def has_stacked(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a file holds adapters next to each weight, as torch.nn.utils.parametrize names them."""
    return any(name.endswith(_ORIGINAL) for name in tensors)


def merge_stacked(tensors: dict[str, Tensor], index: int | None, scale: float, source: str) -> dict[str, Tensor]:
    """Return the tensors with one of the adapters that a file holds next to each weight.

    Args:
        tensors: the tensors of the file: ``X.parametrizations.weight.original`` (N, D), ``lora_A`` (adapters, r, D) and
            ``lora_B`` (adapters, N, r); of an embedding (adapters, N, r) and (adapters, r, D).
        index: number of the adapter; None for the weights without one.
        scale: s.
        source: the path of the file, for messages.

    Raises:
        ValueError: a factor is missing or misshapen.
    """
    merged = {name: tensor for name, tensor in tensors.items() if ".parametrizations." not in name}
    for name, weight in tensors.items():
        if not name.endswith(_ORIGINAL):
            continue
        module = name.removesuffix(_ORIGINAL)
        merged[f"{module}.weight"] = weight
        if index is None:
            continue
        first, second = (tensors.get(f"{module}{_FACTORS}{factor}") for factor in "AB")
        if first is None or second is None or index >= min(first.shape[0], second.shape[0]):
            raise ValueError(f"{source} lacks adapter {index} of {module}")
        factors = (first[index], second[index]) if "embeddings" in module else (second[index], first[index])
        merged[f"{module}.weight"] = _updated(weight, *factors, scale, f"{source}: the adapter of {module}")
    return merged


def merge_peft(
    tensors: dict[str, Tensor], folder: Path, locate: Callable[[str], tuple[str, int, int]]
) -> dict[str, Tensor]:
    """Return the tensors with an adapter of PEFT.

    Args:
        tensors: the tensors of the model.
        folder: the folder of the adapter.
        locate: from a module of the adapter to the name of a tensor, and which of how many equal parts of its rows.

    Raises:
        ValueError: a setting of the adapter is not supported, or a factor is missing, misshapen or of no module.
    """
    config, source = read_json(folder / _CONFIG), folder / _WEIGHTS
    for key, allowed in _PLAIN_VALUES.items():
        if config.get(key) not in allowed:
            raise ValueError(f"{folder / _CONFIG} has {key}={config[key]!r:.80}, which is not supported")
    if not source.is_file():
        raise ValueError(f"{folder} has no {_WEIGHTS}")
    rank, alpha = (_positive(config.get(key), key, folder / _CONFIG) for key in ("r", "lora_alpha"))
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    factors, merged = read_safetensors(source), dict(tensors)
    for name in list(factors):
        module = name.removeprefix("base_model.model.")
        for a, b in ((".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B")):
            if not module.endswith(a):
                continue
            first, second = factors.pop(name), factors.pop(name.removesuffix(a) + b, None)
            target, part, parts = locate(module.removesuffix(a))
            if second is None or target not in merged:
                raise ValueError(f"{source}: tensor {name} has no counterpart in the adapter or the model")
            pair = (first.T, second.T) if "embedding" in a else (second, first)
            rows = list(merged[target].chunk(parts))
            rows[part] = _updated(rows[part], *pair, scale, f"{source}: {name}")
            merged[target] = torch.cat(rows)
    if factors:
        raise ValueError(f"{source}: tensor {next(iter(factors))} is unexpected: it is no factor of a low-rank adapter")
    return merged


def _updated(weight: Tensor, left: Tensor, right: Tensor, scale: float, what: str) -> Tensor:
    shapes = (left.shape[0], right.shape[-1])
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0] or shapes != tuple(weight.shape):
        raise ValueError(
            f"{what} has factors of shape {tuple(left.shape)} and {tuple(right.shape)}, but the weight has shape "
            f"{tuple(weight.shape)}"
        )
    return weight + scale * (left @ right)


def _positive(value: object, key: str, source: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"{source} has {key}={value!r:.80}; expected a number above 0")
    return float(value)
