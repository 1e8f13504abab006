"""Quantize the weight of a linear layer to 8 bits, so that its outputs change as little as possible."""

from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = 127
"""Largest code of a weight."""

_DAMPING = 0.1
"""Added to the diagonal of the Hessian, as a share of its mean."""
_BLOCK = 64
"""Columns whose errors are moved to the later ones together."""
_SMALLEST = 1e-8
"""Smallest scale, for rows of zeros."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight W (N, K) as 8-bit codes, with some columns in float32.

    Equation: W ≈ s ⊙ Q, and W itself in the columns of the outliers, where Q is 0

    Args:
        codes_NK: int8 codes Q of [-127, 127].
        scale_N: s.
        outliers_J: the columns in float32.
        outlier_weight_JN: these columns of W.
    """

    codes_NK: Tensor
    scale_N: Tensor
    outliers_J: Tensor
    outlier_weight_JN: Tensor


def quantize_weight(weight_NK: Tensor, hessian_KK: Tensor, outliers_J: Tensor) -> QuantizedWeight:
    """Quantize a weight column by column; the columns that follow compensate the error of each.

    Equation: min_Q ‖X (s ⊙ Q − W)ᵀ‖²
    Source: Frantar et al. 2022, "GPTQ", Algorithm 1, with the columns in the order of their inputs' sizes

    Args:
        weight_NK: W in float32.
        hessian_KK: Xᵀ X / n over inputs X of the layer.
        outliers_J: the columns that stay in float32.
    """
    weight = weight_NK.clone()
    weight[:, outliers_J] = 0
    scale_N1 = weight.abs().amax(dim=1, keepdim=True).clamp_min(_SMALLEST) / LEVELS
    hessian = hessian_KK.clone()
    hessian[outliers_J] = 0
    hessian[:, outliers_J] = 0
    hessian.diagonal().add_(_DAMPING * hessian.diagonal().mean().clamp_min(_SMALLEST))
    order = hessian.diagonal().argsort(descending=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian[order][:, order]))
    # row i of the upper factor spreads an error of column i over the columns after it
    upper = torch.linalg.cholesky(inverse, upper=True)
    weight, codes = weight[:, order], torch.zeros_like(weight)
    for start in range(0, weight.shape[1], _BLOCK):
        end = min(start + _BLOCK, weight.shape[1])
        errors = torch.empty(len(weight), end - start)
        for column in range(start, end):
            rounded_N1 = (weight[:, column, None] / scale_N1).round().clamp(-LEVELS, LEVELS)
            error_N1 = (weight[:, column, None] - rounded_N1 * scale_N1) / upper[column, column]
            weight[:, column:end] -= error_N1 * upper[column, column:end]
            codes[:, column], errors[:, column - start] = rounded_N1[:, 0], error_N1[:, 0]
        weight[:, end:] -= errors @ upper[start:end, end:]
    codes_NK = torch.zeros_like(codes, dtype=torch.int8)
    codes_NK[:, order] = codes.to(torch.int8)
    codes_NK[:, outliers_J] = 0
    return QuantizedWeight(codes_NK, scale_N1[:, 0], outliers_J, weight_NK[:, outliers_J].t().contiguous())
