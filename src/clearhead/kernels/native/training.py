"""The compiled kernels of training: cross-entropy, and dropout alone and before a residual sum and its layer norm."""

import ctypes

import torch
from torch import Tensor

from clearhead.kernels.native import library

DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes of the elements that these kernels read and write."""


class DropoutStruct(ctypes.Structure):
    """`Dropout` in training.h."""

    _fields_ = [("seed", ctypes.c_uint64), ("bound", ctypes.c_uint32), ("scale", ctypes.c_float)]


def dropout_struct(seed: int, keep_prob: float) -> DropoutStruct:
    """Return the struct of a dropout.

    Args:
        seed: seed of the mask, of 64 bits.
        keep_prob: the probability of keeping an element, a multiple of 2^-32.
    """
    # a bound of 0 keeps all elements
    return DropoutStruct(seed, round(keep_prob * 2**32) % 2**32, 1 / keep_prob)


def dropout(struct: DropoutStruct, x: Tensor, isa: str) -> Tensor:
    """Return x with dropped elements zeroed and the others scaled.

    Args:
        struct: mask and scale.
        x: float32 or bfloat16, of any shape.
        isa: an instruction set.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    library.function("dropout", isa)(
        ctypes.byref(struct), _pointer(x), _is_half(x), ctypes.c_int64(x.numel()), _pointer(y), torch.get_num_threads()
    )
    return y


def drop_add_norm(
    struct: DropoutStruct, x: Tensor, change: Tensor, weight: Tensor, bias: Tensor, eps: float, isa: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return LN(x + drop(change)), and for the backward pass its value before γ and β and 1 / σ.

    Args:
        struct: mask and scale of the dropout.
        x: float32 (..., D), contiguous, with D a multiple of `library.MULTIPLE`.
        change: float32 or bfloat16, of the same shape, contiguous.
        weight, bias: float32 (D), γ and β.
        eps: ε of the layer norm.
        isa: an instruction set.
    """
    width = x.shape[-1]
    rows = x.numel() // width
    y, normal, inverse = torch.empty_like(x), torch.empty_like(x), x.new_empty(rows)
    library.function("drop_add_norm", isa)(
        ctypes.byref(struct), _pointer(x), _pointer(change), _is_half(change), ctypes.c_int64(rows), width,
        _pointer(weight), _pointer(bias), ctypes.c_float(eps), *map(_pointer, (y, normal, inverse)),
        torch.get_num_threads(),
    )  # fmt: skip
    return y, normal, inverse


def drop_add_norm_backward(
    struct: DropoutStruct,
    gradient: Tensor,
    normal: Tensor,
    inverse: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    isa: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, of the change in its dtype, of γ and of β.

    Args:
        struct, normal, inverse, weight, isa: as in `drop_add_norm`.
        gradient: float32 gradient of the result, contiguous.
        dtype: dtype of the change.
    """
    rows, width, threads = inverse.numel(), normal.shape[-1], torch.get_num_threads()
    d_x, d_change = torch.empty_like(normal), torch.empty_like(normal, dtype=dtype)
    sums = normal.new_zeros(threads, 2, width)
    library.function("drop_add_norm_backward", isa)(
        ctypes.byref(struct), *map(_pointer, (gradient, normal, inverse)), ctypes.c_int64(rows), width,
        _pointer(weight), _pointer(d_x), _pointer(d_change), _is_half(d_change), _pointer(sums), threads,
    )  # fmt: skip
    d_weight, d_bias = sums.sum(dim=0)
    return d_x, d_change, d_weight, d_bias


def cross_entropy(logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, isa: str) -> Tensor:
    """Return the loss of each position, and replace its logits by their gradient.

    Args:
        logits: float32 or bfloat16 (n, V), contiguous; overwritten.
        bias: float32 (V), contiguous, added to the logits, or None.
        targets: int64 (n), contiguous, each of [0, V).
        smoothing: label smoothing.
        isa: an instruction set.
    """
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    status = library.function("cross_entropy", isa)(
        _pointer(logits), _is_half(logits), None if bias is None else _pointer(bias), ctypes.c_int64(len(logits)),
        logits.shape[1], _pointer(targets), ctypes.c_float(smoothing), _pointer(losses), torch.get_num_threads(),
    )  # fmt: skip
    library.check(status)
    return losses


def _pointer(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _is_half(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16
