"""A model built and filled with a checkpoint's tensors, without drawing weights that are about to be replaced."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Model = TypeVar("Model", bound=nn.Module)


def build_and_load(
    build: Callable[[], Model],
    ours: Callable[[Mapping[str, tuple[int, ...]]], dict[str, Tensor]],
    where: str = "config.json",
) -> Model:
    """Return a model with a checkpoint's tensors, in evaluation mode.

    Args:
        build: makes the model from its config.
        ours: from our names and shapes to the checkpoint's tensors.
        where: the file that the config came from, for messages.

    Raises:
        ValueError: config.json asks for sizes that no memory can hold.
    """
    plan = _named(where, lambda: on_meta(build))  # shapes alone: a config may ask for more than any memory holds
    twice = _twice(plan)
    tensors = ours({name: tuple(tensor.shape) for name, tensor in plan.state_dict().items() if name not in twice})
    tensors |= {name: tensors[first] for name, first in twice.items()}
    with SkipInit():
        model = _named(where, build)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def _named(where: str, build: Callable[[], Model]) -> Model:
    try:
        return build()
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def on_meta(build: Callable[[], Model]) -> Model:
    """Return a model without memory for its tensors, for their shapes.

    Raises:
        ValueError: a tensor would have more bytes than an address can count.
    """
    try:
        with torch.device("meta"), SkipInit():
            return build()
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise ValueError(
            "the sizes of the model are too large for any memory. Use smaller widths, a smaller vocabulary or fewer "
            "positions"
        ) from None


def _twice(model: nn.Module) -> dict[str, str]:
    """The names of tensors that have another name before, such as a tied output's, with that name."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first[id(tensor)] for name, tensor in named if first.setdefault(id(tensor), name) != name}


class SkipInit(TorchFunctionMode):
    """Random initial weights are not drawn: a checkpoint is about to replace them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_) or _is_initialiser(func):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _is_initialiser(func: object) -> bool:
    return getattr(func, "__module__", None) == "torch.nn.init"
