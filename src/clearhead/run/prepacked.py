"""Linear maps for running on a CPU: weights in the order in which oneDNN reads them, bias and activation in the product.

The operators are PyTorch's own, for what its compiler writes: private, so that they stand in this file alone, and are
used only where they are there and agree with `functional.linear`. They know no gradients.
"""

import functools
import logging

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from clearhead.layers.feedforward import PositionwiseFeedForward

log = logging.getLogger(__name__)

_ROWS = 2048
"""Rows for which the order is chosen; products of other numbers of rows are as right."""


class PrepackedLinear(nn.Module):
    """A linear map and an activation, for inference.

    Equation: act(x Wᵀ + b)
    Source: Section 3.3 of "Attention Is All You Need"

    Args:
        linear: the map; it stays as it is, and is packed anew when its weight has changed.
        dtype: the numbers of x and of the result.
        activation: what follows: `nn.ReLU`, `nn.GELU`, `nn.SiLU`, or None for nothing.

    A row of the result is the same to the last bit, whatever other rows there are.

    Raises:
        RuntimeError: in `forward`, where gradients are recorded.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, dtype
        self._linear = (linear,)  # in a tuple: its parameters are the model's, not this module's
        self._activation = _name(activation)
        self._version: int | None = None

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch F"]:
        if torch.is_grad_enabled():
            raise RuntimeError("prepacked weights know no gradients; run this model under torch.inference_mode()")
        (linear,) = self._linear
        version = 0 if linear.weight.is_inference() else linear.weight._version
        if self._version != version:
            self._version = version
            self._weight = _packed(linear.weight.detach().to(self.dtype))
            self._bias = None if linear.bias is None else linear.bias.detach().to(self.dtype)
        return _product(x, self._weight, self._bias, self._activation)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.dtype}, activation={self._activation[0]}"


def stand_ins(stack: nn.Module, dtype: torch.dtype) -> dict[int, nn.Module]:
    """By the identity of each module that is replaced what stands in its place: a memo for `copy.deepcopy`."""
    places: dict[int, nn.Module] = {}
    for module in stack.modules():
        if isinstance(module, PositionwiseFeedForward) and _name(module.activation) is not None:
            places[id(module.inner)] = PrepackedLinear(module.inner, dtype, module.activation)
            places[id(module.activation)] = nn.Identity()
        elif type(module) is nn.Linear and id(module) not in places:
            places[id(module)] = PrepackedLinear(module, dtype)
    return places


@functools.cache
def usable(dtype: torch.dtype) -> bool:
    """Whether the operators are there, and compute what they should in these numbers."""
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        x, linear = torch.randn(5, 48), nn.Linear(48, 40)
        for activation in (None, nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU()):
            plain = linear(x) if activation is None else activation(linear(x))
            try:
                found = PrepackedLinear(linear, dtype, activation)(x.to(dtype))
            except (AttributeError, RuntimeError, NotImplementedError) as error:
                log.info("prepacked linear maps are not there for %s: %s", dtype, error)
                return False
            if found.dtype != dtype or (found.float() - plain).norm() > 4 * torch.finfo(dtype).eps * plain.norm():
                log.warning("prepacked linear maps are wrong for %s, and not used", dtype)
                return False
    return True


_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "swish"}


def _name(activation: nn.Module | None) -> tuple[str, str] | None:
    """oneDNN's name of an activation, and its algorithm; None where it has none."""
    if activation is None:
        return "none", "none"
    if type(activation) not in _ACTIVATIONS:
        return None
    return _ACTIVATIONS[type(activation)], getattr(activation, "approximate", "none")


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return packed


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: tuple[str, str]) -> Tensor:
    name, algorithm = activation
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
    return result
