"""Dropout with fast random masks on the CPU; its oracle is `dropout` in `equations/residual.py`.

On a CPU, PyTorch draws 24 random bits for each element sequentially. In the training of a small model that takes
an eighth of the time or more. The compiled kernel (`native/training.h`) hashes the index of each element in both
passes and stores no mask. Without the kernel 64 random bits serve four elements.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from clearhead.kernels.native import library, training

_STEPS = 2**16


def keep_probability(drop_prob: float) -> float:
    """Return the exact probability of keeping an element: 1 − p, rounded to a multiple of 1 / 65536.

    Raises:
        ValueError: a probability outside 0 up to, not including, 1.

    >>> from clearhead.kernels.dropout import keep_probability
    >>> keep_probability(0.75), keep_probability(1e-9)
    (0.25, 1.0)
    """
    if not 0.0 <= drop_prob < 1.0:
        raise ValueError(f"drop_prob is a probability from 0 up to, not including, 1; got {drop_prob}")
    return max(1, round((1 - drop_prob) * _STEPS)) / _STEPS


def dropout_mask(shape: Sequence[int], drop_prob: float, dtype: torch.dtype = torch.uint8) -> Shaped[Tensor, "..."]:
    """Draw a dropout mask on the CPU from PyTorch's global generator: 1 for kept, 0 for dropped elements.

    The compiled kernels draw other masks.

    Args:
        shape: shape of the mask.
        drop_prob: p, from 0 up to, not including, 1; the exact probability of a 1 is `keep_probability(p)`.
        dtype: integer dtype of the mask.

    >>> import torch; from clearhead.kernels.dropout import dropout_mask
    >>> dropout_mask((2, 3), 0.0)
    tensor([[1, 1, 1],
            [1, 1, 1]], dtype=torch.uint8)
    """
    size, bound = math.prod(shape), round(keep_probability(drop_prob) * _STEPS)
    if bound == _STEPS:
        return torch.ones(tuple(shape), dtype=dtype, device="cpu")
    # twice as fast as PyTorch's generator, which seeds it
    draws = numpy.random.SFC64(_draw_seed()).random_raw(-(-size // 4))
    parts = torch.from_numpy(draws.view(numpy.int16))[:size].view(tuple(shape))
    # written in the final dtype: converting a bool mask at each multiplication takes longer than drawing it
    return torch.lt(parts, bound - _STEPS // 2, out=torch.empty(parts.shape, dtype=dtype, device="cpu"))


def fast_dropout(x: Float[Tensor, "*any"], drop_prob: float) -> Float[Tensor, "*any"]:
    """Apply training's dropout, with fast random masks on the CPU and PyTorch's own dropout elsewhere.

    Source: Section 5.4; Srivastava et al. 2014; the formula is in `equations/residual.py`. Kept elements are divided
        by the exact probability of keeping one, so that the mean is unchanged

    Args:
        x: any shape.
        drop_prob: as in `dropout_mask`.

    >>> import torch; from clearhead.kernels.dropout import fast_dropout
    >>> fast_dropout(torch.ones(3), 0.0)
    tensor([1., 1., 1.])
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, drop_prob)
    isa = library.isa_with("dropout") if x.dtype in training.DTYPES else None
    if isa is not None:
        dropped: Tensor = _NativeDropout.apply(x, draw_dropout(drop_prob), isa)  # type: ignore[no-untyped-call]
    else:
        dropped = _FastDropout.apply(x, drop_prob)  # type: ignore[no-untyped-call]
    return dropped


def draw_dropout(drop_prob: float) -> training.DropoutStruct:
    """Draw the seed of a mask of the compiled kernels from PyTorch's global generator, if anything is dropped."""
    return training.dropout_struct(_draw_seed() if drop_prob else 0, keep_probability(drop_prob))


def _draw_seed() -> int:
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


class _NativeDropout(torch.autograd.Function):
    """Dropout by the compiled kernel; its backward pass drops the gradients in the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, struct: training.DropoutStruct, isa: str) -> Tensor:
        ctx.struct, ctx.isa = struct, isa
        return training.dropout(struct, x, isa)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return training.dropout(ctx.struct, gradient, ctx.isa), None, None


class _FastDropout(torch.autograd.Function):
    """Multiply the bits of elements, as integers, by 0 or 1: converting x or the mask would take longer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, drop_prob: float) -> Tensor:
        ctx.integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        mask = dropout_mask(x.shape, drop_prob, ctx.integer)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / keep_probability(drop_prob)
        return (x.view(ctx.integer) * mask).view(x.dtype).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (gradient.view(ctx.integer) * mask).view(gradient.dtype).mul_(ctx.scale), None
