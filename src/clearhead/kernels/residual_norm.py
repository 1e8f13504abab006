"""Dropout, residual sum and layer norm as one operation, in training on a CPU with compiled kernels."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.kernels.dropout import draw_dropout
from clearhead.kernels.native import library, training


def drop_add_norm_isa(x: Tensor, change: Tensor, weight_D: Tensor) -> str | None:
    """Return the instruction set of the compiled kernel, or None where it cannot compute these tensors."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    in_float32 = x.dtype == weight_D.dtype == torch.float32 and change.dtype in training.DTYPES
    fits = x.shape == change.shape and x.shape[-1] % library.MULTIPLE == 0
    return library.isa_with("drop_add_norm") if in_float32 and fits else None


def drop_add_norm(
    x: Float[Tensor, "*batch D"],
    change: Float[Tensor, "*batch D"],
    drop_prob: float,
    weight_D: Float[Tensor, "D"],
    bias_D: Float[Tensor, "D"],
    eps: float,
    isa: str,
) -> Float[Tensor, "*batch D"]:
    """Compute LN(x + drop(change)) in one pass over memory instead of five, and its gradients in one.

    Source: Sections 3.1 and 5.4; the formulas are in `equations/residual.py` and `equations/norm.py`

    Args:
        x: input of the sub-layer, float32.
        change: output of the sub-layer, float32 or bfloat16.
        drop_prob: as in `dropout_mask`.
        weight_D, bias_D: γ and β.
        eps: ε of the layer norm.
        isa: what `drop_add_norm_isa` returned.
    """
    arguments = (x, change, weight_D, bias_D, draw_dropout(drop_prob), eps, isa)
    y: Tensor = _DropAddNorm.apply(*arguments)  # type: ignore[no-untyped-call]
    return y


class _DropAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        change: Tensor,
        weight_D: Tensor,
        bias_D: Tensor,
        struct: training.DropoutStruct,
        eps: float,
        isa: str,
    ) -> Tensor:
        ctx.struct, ctx.isa, ctx.dtype = struct, isa, change.dtype
        y, normal, inverse = training.drop_add_norm(
            struct, x.contiguous(), change.contiguous(), weight_D, bias_D, eps, isa
        )
        ctx.save_for_backward(normal, inverse, weight_D)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        normal, inverse, weight_D = ctx.saved_tensors
        return (
            *training.drop_add_norm_backward(
                ctx.struct, gradient.contiguous(), normal, inverse, weight_D, ctx.dtype, ctx.isa
            ),
            None,
            None,
            None,
        )
