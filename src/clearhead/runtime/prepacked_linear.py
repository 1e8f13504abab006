"""Linear maps for running on a CPU: weights in the order in which oneDNN reads them, the activation in the product; or,
for the few rows of a decoder's step, in the order in which MKL does.

The operators are PyTorch's own, for what its compiler writes: private, so that they stand in this file alone, and are
used only where they are there and agree with `functional.linear`. They know no gradients.
"""

import functools
import logging

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.kernels import cpu
from clearhead.kernels.topk import topk
from clearhead.layers.embedding import OutputProjection
from clearhead.layers.feedforward import PositionwiseFeedForward

log = logging.getLogger(__name__)

_ROWS = 2048
"""Rows for which the order is chosen; products of other numbers of rows are as right."""
_FEW_ROWS = 128
"""The same for a decoder, which has a row for each target."""
_EXACT = 16
"""Best tokens whose scores are computed in 32 bits."""

_Name = tuple[str, str]
"""oneDNN's name of an activation, and its algorithm."""
_NOTHING: _Name = ("none", "none")


class PrepackedLinear(nn.Module):
    """A linear map and an activation, for inference.

    Equation: act(x Wᵀ + b)
    Source: Section 3.3 of "Attention Is All You Need"

    Args:
        linear: the map; it stays as it is, and is packed anew when its weight or bias was changed in place.
        dtype: the numbers of x and of the result.
        activation: what follows: `nn.ReLU`, `nn.GELU`, `nn.SiLU`, or None for nothing.
        few_rows: whether to pack for few rows, in float32 and without an activation.

    A row of the result is the same to the last bit, whatever other rows there are; packed for few rows to 1e-6.

    Raises:
        RuntimeError: in `forward`, where gradients are recorded.
    """

    def __init__(
        self, linear: nn.Linear, dtype: torch.dtype, activation: nn.Module | None = None, *, few_rows: bool = False
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, dtype
        self._given = linear.weight, linear.bias  # in a tuple: they are parameters of the model, not of this module
        # a stack without norms has no other parameter that says its numbers
        self.numbers = nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)
        self._packed = _PackedForFew(dtype) if few_rows else _Packed(dtype)
        name = _name(activation)
        assert name is not None
        self._activation = name

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch F"]:
        return self._packed.product(x, *self._given, self._activation)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.dtype}, activation={self._activation[0]}"


class PrepackedUnembedding(nn.Module):
    """An `OutputProjection` for inference, with its matrix packed.

    Equation: logits = H W_Eᵀ + b
    Source: Section 3.4 of "Attention Is All You Need"

    Args:
        output: the map; it stays as it is, and is packed anew when its weight or bias was changed in place.
        dtype: numbers of the product. Sixteen bits cannot tell the best tokens apart: those are computed again in 32.

    Raises:
        RuntimeError: in `forward`, where gradients are recorded.
    """

    def __init__(self, output: OutputProjection, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self._given = output.tokens.weight, output.bias
        self._scaled = output.scale_hidden
        self._packed = _PackedForFew(dtype) if _small_batch_is_faster(dtype) else _Packed(dtype)

    def forward(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
        (weight_VD, bias_V), h = self._given, self._scaled(h).float()
        if self.dtype == torch.float32:
            return self._packed.product(h, weight_VD, bias_V)
        logits = self._packed.product(h.to(self.dtype), weight_VD, bias_V).float()
        logits_NV = logits.flatten(0, -2)
        _, places_NC = topk(logits_NV, _EXACT)
        exact_NC = torch.einsum("nd,ncd->nc", h.flatten(0, -2), weight_VD[places_NC])
        logits_NV.scatter_(1, places_NC, exact_NC if bias_V is None else exact_NC + bias_V[places_NC])
        return logits

    def extra_repr(self) -> str:
        return f"{self.dtype}"


class _Packed:
    """A weight in oneDNN's order, with its bias, in some numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.versions: list[int] | None = None

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: _Name = _NOTHING) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("prepacked weights know no gradients; run this model under torch.inference_mode()")
        given = [weight] if bias is None else [weight, bias]
        versions = [version(x) for x in given]
        if self.versions != versions:
            self.weight = self._pack(weight.detach().to(self.dtype))
            # zeros, as most models' biases of the vocabulary are, would be written before they are added to
            self.bias = None if bias is None or not bias.any() else bias.detach().to(self.dtype)
            self.versions = versions
        return self._multiply(x, weight, activation)

    def _pack(self, weight: Tensor) -> Tensor:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        return packed

    def _multiply(self, x: Tensor, weight: Tensor, activation: _Name) -> Tensor:
        name, algorithm = activation
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, name, [], algorithm)
        return result


class _PackedForFew(_Packed):
    """A float32 weight in MKL's order, without an activation: up to 200 rows are multiplied a tenth faster, and 2,000
    as much slower. The order is chosen for one number of rows, and serves any other."""

    def _pack(self, weight: Tensor) -> Tensor:
        packed: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight, _FEW_ROWS)
        return packed

    def _multiply(self, x: Tensor, weight: Tensor, activation: _Name) -> Tensor:
        assert activation == _NOTHING
        rows = x.numel() // x.shape[-1]  # said, and not what it was packed for: else the plain weight would be used
        result: Tensor = torch.ops.mkl._mkl_linear(x, self.weight, weight, self.bias, rows)
        return result


def version(x: Tensor) -> int:
    """How often a tensor was changed in place; 0 for one made under torch.inference_mode(), which keeps no count."""
    return 0 if x.is_inference() else x._version


def replacements(module: nn.Module, dtype: torch.dtype, *, few_rows: bool = False) -> dict[int, nn.Module]:
    """By the identity of each part that is replaced what stands in its place: a memo for `copy.deepcopy`.

    Args:
        module: a stack, or an output.
        dtype: the numbers to compute in.
        few_rows: whether it is called with few rows, as a decoder is.
    """
    places: dict[int, nn.Module] = {}
    few_rows = few_rows and _small_batch_is_faster(dtype)
    for part in module.modules():
        if isinstance(part, PositionwiseFeedForward) and _joins(part.activation) and not few_rows:
            places[id(part.inner)] = PrepackedLinear(part.inner, dtype, part.activation)
            places[id(part.activation)] = nn.Identity()
        elif type(part) is nn.Linear and id(part) not in places:
            places[id(part)] = PrepackedLinear(part, dtype, few_rows=few_rows)
        elif isinstance(part, OutputProjection):
            places[id(part)] = PrepackedUnembedding(part, dtype)
        elif isinstance(part, nn.Dropout):  # nothing is trained here, and to call it takes time at every step
            places[id(part)] = nn.Identity()
    return places


@functools.cache
def is_supported(dtype: torch.dtype) -> bool:
    """Whether the operators are there, and compute what they should in these numbers."""
    activations = (None, nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU())
    return all(_is_correct(dtype, 5, activation) for activation in activations)


@functools.cache
def _small_batch_is_faster(dtype: torch.dtype) -> bool:
    """Whether few rows are multiplied faster in MKL's order: in float32 on Intel's processors with AMX, where it was
    measured, if the operators are there and right for any number of rows."""
    fast = dtype == torch.float32 and cpu.has("amx_tile")
    return fast and all(_is_correct(dtype, rows, few_rows=True) for rows in (0, 1, 5, 200))


def _is_correct(dtype: torch.dtype, rows: int, activation: nn.Module | None = None, *, few_rows: bool = False) -> bool:
    """Whether the operators are there, and give what `functional.linear` and an activation do."""
    with torch.inference_mode(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]):
        x, linear = torch.randn(rows, 48), nn.Linear(48, 40)
        plain = linear(x) if activation is None else activation(linear(x))
        try:
            found = PrepackedLinear(linear, dtype, activation, few_rows=few_rows)(x.to(dtype))
        except (AttributeError, RuntimeError, NotImplementedError) as error:
            log.info("prepacked linear maps are not there for %s and %d rows: %s", dtype, rows, error)
            return False
        if found.dtype != dtype or (found.float() - plain).norm() > 4 * torch.finfo(dtype).eps * plain.norm():
            log.warning("prepacked linear maps are wrong for %s and %d rows, and not used", dtype, rows)
            return False
    return True


def _joins(activation: nn.Module) -> bool:
    """Whether an activation is better computed with the product before it."""
    if type(activation) is nn.GELU and torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False  # with AVX2 oneDNN's takes four times as long as PyTorch's
    return _name(activation) is not None


_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "swish"}


def _name(activation: nn.Module | None) -> _Name | None:
    """An activation's name; None where it has none."""
    if activation is None:
        return _NOTHING
    if type(activation) not in _ACTIVATIONS:
        return None
    return _ACTIVATIONS[type(activation)], getattr(activation, "approximate", "none")
