"""Build a model and load a checkpoint's tensors, without random initialization."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.memory import MemoryLimitError, check_memory

Model = TypeVar("Model", bound=nn.Module)

ENCODER_PREFIX = "encoder."
"""Prefix of the encoder's parameter names in a model with a head."""


def build_and_load(
    build: Callable[[], Model],
    to_ours: Callable[[Mapping[str, tuple[int, ...]]], dict[str, Tensor]],
    source: str = "config.json",
) -> Model:
    """Return a model with the tensors of a checkpoint, in evaluation mode.

    Args:
        build: creates the model from its config.
        to_ours: from our parameter names and shapes to the checkpoint's tensors under these names.
        source: the file that the config came from, for messages.

    Raises:
        ValueError: the sizes in config.json exceed any memory.
    """
    # first without memory for the tensors: a config may define sizes that no memory can hold
    shapes = _with_source(source, lambda: on_meta(build))
    tied = _tied_names(shapes)
    tensors = to_ours({name: tuple(tensor.shape) for name, tensor in shapes.state_dict().items() if name not in tied})
    tensors |= {name: tensors[first] for name, first in tied.items()}
    with SkipInit():
        model = _with_source(source, build)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def on_meta(build: Callable[[], Model]) -> Model:
    """Return a model on PyTorch's meta device: it has shapes, but no memory for tensors.

    Args:
        build: creates the model.

    Raises:
        MemoryLimitError: the bytes of a tensor overflow the address space.
    """
    try:
        with torch.device("meta"), SkipInit():
            return build()
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        advice = "Use smaller widths, a smaller vocabulary or fewer positions."
        if shape := re.search(r"sizes=\[([\d, ]+)\]", str(error)):
            sizes = [int(size) for size in shape[1].split(",")]
            check_memory(4 * math.prod(sizes), f"a tensor of the model with shape {tuple(sizes)}", advice)
        raise MemoryLimitError(f"the sizes of the model are too large for any memory. {advice}") from None


class SkipInit(TorchFunctionMode):
    """Context manager that skips random initialization, for weights that a checkpoint replaces."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_) or _is_initializer(func):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _is_initializer(func: object) -> bool:
    return getattr(func, "__module__", None) == "torch.nn.init"


def _with_source(source: str, build: Callable[[], Model]) -> Model:
    """Build a model; start the message of a ValueError with the file that the config came from."""
    try:
        return build()
    except ValueError as error:
        kind = MemoryLimitError if isinstance(error, MemoryLimitError) else ValueError
        raise kind(f"{source}: {error}") from None


def _tied_names(model: nn.Module) -> dict[str, str]:
    """Return the second and later names of shared parameters, such as a tied output's, with the first name."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first[id(tensor)] for name, tensor in named if first.setdefault(id(tensor), name) != name}
