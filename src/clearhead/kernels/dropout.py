"""Dropout whose masks are drawn cheaply: the plain equation, and its oracle, is `dropout` in `norm.py`.

torch draws a number of 24 bits for each decision on a CPU, one after another: in the training of a small model an
eighth of the time and more. Here a draw of 64 bits makes four decisions.
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

_STEPS = 2**16


def keep_probability(drop_prob: float) -> float:
    """The probability with which a number is really kept: 1 − p, rounded to a multiple of 1 / 65536.

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
    """1 where a number is kept and 0 where it is dropped, drawn on the CPU as torch's global generator says.

    Args:
        shape: of the mask.
        drop_prob: p, from 0 up to, not including, 1; what is really kept is `keep_probability(p)` of the numbers.
        dtype: of the mask: whole numbers of any width.

    >>> import torch; from clearhead.kernels.dropout import dropout_mask
    >>> dropout_mask((2, 3), 0.0)
    tensor([[1, 1, 1],
            [1, 1, 1]], dtype=torch.uint8)
    """
    size, bound = math.prod(shape), round(keep_probability(drop_prob) * _STEPS)
    if bound == _STEPS:
        return torch.ones(tuple(shape), dtype=dtype, device="cpu")
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    draws = numpy.random.SFC64(seed).random_raw(-(-size // 4))  # twice as fast as torch's generator, from its seed
    parts = torch.from_numpy(draws.view(numpy.int16))[:size].view(tuple(shape))
    # written as numbers at once: a bool mask would be converted at each product, which takes longer than the draws
    return torch.lt(parts, bound - _STEPS // 2, out=torch.empty(parts.shape, dtype=dtype, device="cpu"))


def fast_dropout(x: Float[Tensor, "*any"], drop_prob: float) -> Float[Tensor, "*any"]:
    """Training's dropout: `norm.dropout` with cheap draws on the CPU, torch's own elsewhere.

    Source: Section 5.4; Srivastava et al. 2014; the formula is stated in `norm.py`. What is kept is divided by the
        share that is really kept, so that the mean stays exactly

    Args:
        x: any numbers.
        drop_prob: as in `dropout_mask`.

    >>> import torch; from clearhead.kernels.dropout import fast_dropout
    >>> fast_dropout(torch.ones(3), 0.0)
    tensor([1., 1., 1.])
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, drop_prob)
    dropped: Tensor = _Drop.apply(x, drop_prob)  # type: ignore[no-untyped-call]
    return dropped


class _Drop(torch.autograd.Function):
    """Numbers and masks are multiplied as whole numbers of one width, bits times 0 or 1: converting either would take
    longer than the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, drop_prob: float) -> Tensor:
        ctx.whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        mask = dropout_mask(x.shape, drop_prob, ctx.whole)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / keep_probability(drop_prob)
        return (x.view(ctx.whole) * mask).view(x.dtype).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (gradient.view(ctx.whole) * mask).view(gradient.dtype).mul_(ctx.scale), None
