"""Matrix multiplication with prepacked weights on a CPU: in oneDNN's layout, or in MKL's for small batches.

The operators are private ones of PyTorch, written for its compiler. They are used in this file only, after a self-test
against `torch.nn.functional.linear`. They do not compute gradients.
"""

import functools
import logging

import torch
from torch import Tensor, nn

from clearhead.kernels import cpu

log = logging.getLogger(__name__)

_ROWS = 2048
"""Number of rows for which oneDNN chooses the layout; other numbers of rows give correct results too."""
_SMALL_BATCH_ROWS = 128
"""Number of rows for which MKL chooses the layout: a decoder has one row for each target."""

Activation = tuple[str, str]
"""oneDNN's name of an activation, and its algorithm."""
NO_ACTIVATION: Activation = ("none", "none")

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "swish"}


def activation_of(module: nn.Module | None) -> Activation | None:
    """Return oneDNN's name for an activation module, or None if oneDNN has no such activation."""
    if module is None:
        return NO_ACTIVATION
    if type(module) not in _ACTIVATIONS:
        return None
    return _ACTIVATIONS[type(module)], getattr(module, "approximate", "none")


def should_fuse(activation: nn.Module) -> bool:
    """Return whether it is faster to compute an activation inside the matmul before it."""
    if type(activation) is nn.GELU and torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False  # with AVX2, oneDNN's GELU takes four times as long as PyTorch's
    return activation_of(activation) is not None


def version(x: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 for a tensor made under `torch.inference_mode()`."""
    return 0 if x.is_inference() else x._version


class PackedWeight:
    """A weight matrix and bias in oneDNN's layout, repacked when the original changes in place.

    Args:
        dtype: dtype of the packed weight, of the input and of the result.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.versions: list[int] | None = None

    def matmul(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation = NO_ACTIVATION
    ) -> Tensor:
        """Return act(x Wᵀ + b).

        Args:
            x: input (..., D).
            weight, bias: the original parameters (F, D) and (F,).
            activation: the fused activation.

        Raises:
            RuntimeError: gradients are recorded.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("prepacked weights have no gradients; run this model under torch.inference_mode()")
        originals = [weight] if bias is None else [weight, bias]
        versions = [version(original) for original in originals]
        if self.versions != versions:
            self.weight = self._pack(weight.detach().to(self.dtype))
            # most vocabulary biases are zeros: adding them would cost a write of the whole result
            self.bias = None if bias is None or not bias.any() else bias.detach().to(self.dtype)
            self.versions = versions
        return self._multiply(x, weight, activation)

    def _pack(self, weight: Tensor) -> Tensor:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        return packed

    def _multiply(self, x: Tensor, weight: Tensor, activation: Activation) -> Tensor:
        name, algorithm = activation
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, name, [], algorithm)
        return result


class SmallBatchPackedWeight(PackedWeight):
    """A float32 weight in MKL's layout, without a fused activation.

    Matmuls of up to 200 rows are 10 % faster than with oneDNN's layout, and those of 2,000 rows 10 % slower.
    """

    def _pack(self, weight: Tensor) -> Tensor:
        packed: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight, _SMALL_BATCH_ROWS)
        return packed

    def _multiply(self, x: Tensor, weight: Tensor, activation: Activation) -> Tensor:
        assert activation == NO_ACTIVATION
        rows = x.numel() // x.shape[-1]  # with another number here, the operator uses the unpacked weight
        result: Tensor = torch.ops.mkl._mkl_linear(x, self.weight, weight, self.bias, rows)
        return result


@functools.cache
def is_supported(dtype: torch.dtype) -> bool:
    """Return whether oneDNN's operators exist and pass the self-test in this dtype."""
    activations = (None, nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU())
    return all(_is_correct(PackedWeight(dtype), 5, activation) for activation in activations)


@functools.cache
def small_batch_is_faster(dtype: torch.dtype) -> bool:
    """Return whether MKL's layout is faster for small batches, and passes the self-test.

    It was measured in float32 on Intel processors with AMX.
    """
    is_fast = dtype == torch.float32 and cpu.has("amx_tile")
    return is_fast and all(_is_correct(SmallBatchPackedWeight(dtype), rows) for rows in (0, 1, 5, 200))


def _is_correct(packed: PackedWeight, rows: int, activation: nn.Module | None = None) -> bool:
    """Compare a packed matmul with `functional.linear` and the activation module."""
    dtype, name = packed.dtype, activation_of(activation)
    assert name is not None
    with torch.inference_mode(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]):
        x, linear = torch.randn(rows, 48), nn.Linear(48, 40)
        expected = linear(x) if activation is None else activation(linear(x))
        try:
            result = packed.matmul(x.to(dtype), linear.weight, linear.bias, name)
        except (AttributeError, RuntimeError, NotImplementedError) as error:
            log.info("prepacked matmuls are not available for %s and %d rows: %s", dtype, rows, error)
            return False
        if result.dtype != dtype or (result.float() - expected).norm() > 4 * torch.finfo(dtype).eps * expected.norm():
            log.warning("prepacked matmuls are wrong for %s and %d rows, and are not used", dtype, rows)
            return False
    return True
