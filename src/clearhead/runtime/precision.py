"""Precisions: the dtype of a model's layers, and the converter that replaces its linear layers.

To add one, such as an 8-bit kernel, write a `LinearConverter` in a file of `converters/` and add a `Precision` here.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from clearhead.choices import check_choice
from clearhead.kernels import cpu
from clearhead.runtime.converters.int8 import Int8Converter, why_no_int8
from clearhead.runtime.converters.prepacked_linear import PrepackedConverter
from clearhead.runtime.int8.files import is_accurate
from clearhead.runtime.int8.gptq import QuantizedWeight

log = logging.getLogger(__name__)

_is_strict: ContextVar[bool] = ContextVar("is_strict", default=False)


@runtime_checkable
class LinearConverter(Protocol):
    """Interface of objects that replace the linear layers of a model for inference."""

    def supports(self, device: torch.device) -> bool:
        """Return whether the new layers run on a device, with correct results."""

    def convert(self, module: nn.Module, *, small_batch: bool = False) -> dict[int, nn.Module]:
        """Return the replacement of each layer of a module, keyed by the layer's `id`.

        A replacement follows three rules:

        - It has no `Parameter` of the module, because a change of its dtype would change the original. Keep the
          original's parameters in a tuple, as `PrepackedLinear` does. `inference_copy` raises a ValueError otherwise.
        - It follows in-place changes of the original: compare `kernels.linear.version` of its parameters at each call.
        - Replaced linear layers have a parameter of the precision's dtype, which may be empty. A stack without norms
          has no other parameters, and reads its dtype from the first one.

        Args:
            module: a stack or an output projection, which must not be modified.
            small_batch: whether it runs on small batches, as a decoder does.
        """


def _never(device: torch.device) -> bool:
    return False


def _available(model: nn.Module | None, device: torch.device) -> None:
    return None


@dataclass(frozen=True)
class Precision:
    """Dtype of a model's layers, and the converter of its linear layers.

    Args:
        name: the name that users give, such as "bfloat16".
        dtype: dtype of the layers' parameters and hidden states.
        converter: replaces the linear layers on the devices that it supports; None keeps them.
        is_fast: whether "auto" chooses this precision on a device. Of several, the last one registered is chosen.
        convert_weights: returns the converter for 8-bit weights, in place of `converter`.
        why_unavailable: returns why a model cannot run in this precision on a device; None if it can.
        is_compilable: whether `torch.compile` may compile the original linear layers in `dtype`, because the
            converter only makes them faster. False if the converter changes the weights.
    """

    name: str
    dtype: torch.dtype
    converter: LinearConverter | None = None
    is_fast: Callable[[torch.device], bool] = _never
    convert_weights: Callable[[dict[int, QuantizedWeight]], LinearConverter] | None = None
    why_unavailable: Callable[[nn.Module | None, torch.device], str | None] = _available
    is_compilable: bool = False

    def with_weights(self, weights: dict[int, QuantizedWeight]) -> "Precision":
        """Return this precision with the converter for 8-bit weights, which are keyed by the `id` of their layer."""
        assert self.convert_weights is not None
        return replace(self, converter=self.convert_weights(weights), convert_weights=None)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 matrices faster than float32.

    Intel processors with avx512_fp16 do so with AMX only. Where a virtual machine hides AMX, avx512_bf16 was measured
    at half of the float32 rate (176 and 339 GFLOP/s).
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    return cpu.has("amx_bf16") or (cpu.has("avx512_bf16") and not cpu.has("avx512_fp16"))


FLOAT32 = Precision("float32", torch.float32, PrepackedConverter(torch.float32), is_compilable=True)
BFLOAT16 = Precision(
    "bfloat16", torch.bfloat16, PrepackedConverter(torch.bfloat16), multiplies_bfloat16, is_compilable=True
)
INT8 = Precision("int8", torch.float32, convert_weights=Int8Converter, why_unavailable=why_no_int8)

_registry: dict[str, Precision] = {precision.name: precision for precision in (FLOAT32, BFLOAT16, INT8)}


def register_precision(precision: Precision) -> None:
    """Register a precision under its name.

    Raises:
        ValueError: the name is taken.
    """
    if precision.name in ("auto", *_registry):
        raise ValueError(f"there is already a precision named {precision.name!r}; choose another name")
    _registry[precision.name] = precision


def precision_names() -> tuple[str, ...]:
    """Return the names that `choose_precision` accepts, "auto" first.

    >>> precision_names()[:3]
    ('auto', 'float32', 'bfloat16')
    """
    return ("auto", *_registry)


def cpu_precisions() -> list[str]:
    """Return the precisions that are available on this processor, float32 first."""
    return [
        name for name, precision in _registry.items() if precision.why_unavailable(None, torch.device("cpu")) is None
    ]


@contextlib.contextmanager
def strict_precision(strict: bool = True) -> Iterator[None]:
    """Raise an error in this context if a model cannot run in the precision that was requested.

    Args:
        strict: False changes nothing.

    >>> with strict_precision():
    ...     choose_precision("float32", torch.device("cpu")).name
    'float32'
    """
    token = _is_strict.set(strict or _is_strict.get())
    try:
        yield
    finally:
        _is_strict.reset(token)


def choose_precision(
    precision: str,
    device: torch.device,
    model: nn.Module | None = None,
    int8_weights: Path | None = None,
    *,
    compile: bool = False,
) -> Precision:
    """Return the precision with a name; "auto" chooses for the device and the model.

    "auto" is "int8" only if the model has a file of 8-bit weights that were measured to be accurate, and if the
    processor has no AMX, with which bfloat16 is faster. If the model cannot run in a precision there, a warning says
    why, and "auto" is returned in its place; `strict_precision` makes this an error.

    Args:
        precision: a name of `precision_names`.
        device: the device of the computation.
        model: the model.
        int8_weights: file of its 8-bit weights, if there is one.
        compile: whether the model will be compiled: "auto" then chooses among the precisions that are compilable.

    Raises:
        ValueError: an unknown precision, or one that is not available within `strict_precision`.

    >>> choose_precision("float32", torch.device("cpu")).dtype
    torch.float32
    """
    check_choice("precision", precision, precision_names())

    def can_run(candidate: Precision) -> bool:
        return (candidate.is_compilable or not compile) and candidate.why_unavailable(model, device) is None

    fast = (candidate for candidate in reversed(_registry.values()) if candidate.is_fast(device))
    fastest = next((candidate for candidate in fast if can_run(candidate)), FLOAT32)
    if precision == "auto":
        prefers_int8 = int8_weights is not None and not cpu.has("amx_bf16") and is_accurate(int8_weights)
        return INT8 if prefers_int8 and can_run(INT8) else fastest
    chosen = _registry[precision]
    reason = chosen.why_unavailable(model, device)
    if reason is None:
        return chosen
    if _is_strict.get():
        raise ValueError(f"{precision} is not available: {reason}. Use another precision, such as {fastest.name}")
    log.warning("%s is not available: %s. Computing in %s.", precision, reason, fastest.name)
    return fastest
