"""Layer normalization, with and without the mean."""

import operator
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["layer", "rms"]


class LayerNorm(nn.Module):
    """Layer normalization over the last dimensions.

    Equation: LN(x) = γ ⊙ (x − μ) / √(σ² + ε) + β
    Source: Ba et al. 2016, "Layer Normalization"; written out in `equations/norm.py`

    Args:
        parameters_shape: the last dimensions of the input, as an int or a sequence.
        eps: ε, added to the biased variance inside the root.
        bias: whether β exists.

    Raises:
        ValueError: in `forward`, an input whose last dimensions differ from parameters_shape.

    >>> import torch; from clearhead import LayerNorm
    >>> LayerNorm(512)(torch.rand(2, 10, 512)).shape
    torch.Size([2, 10, 512])
    """

    def __init__(self, parameters_shape: int | Sequence[int], eps: float = 1e-5, *, bias: bool = True) -> None:
        super().__init__()
        sizes = parameters_shape if isinstance(parameters_shape, Sequence) else (parameters_shape,)
        shape = tuple(operator.index(size) for size in sizes)
        if not shape or min(shape) < 1:
            raise ValueError(f"LayerNorm needs one or more dimensions of at least 1; got {parameters_shape}")
        self.parameters_shape = shape
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if tuple(x.shape[-len(self.parameters_shape) :]) != self.parameters_shape:
            raise ValueError(f"LayerNorm over {self.parameters_shape} got an input of shape {tuple(x.shape)}")
        return functional.layer_norm(x, self.parameters_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.parameters_shape}, eps={self.eps}"


class RMSNorm(nn.Module):
    """RMSNorm: normalization by the root mean square over the last dimension.

    Equation: RMSNorm(x) = γ ⊙ x / √(mean(x²) + ε)
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; computed in at least 32 bits, as in T5

    Args:
        d_model: width D of the input.
        eps: ε, added to the mean square inside the root.

    >>> import torch; from clearhead import RMSNorm
    >>> RMSNorm(2, eps=0.0)(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314], grad_fn=<MulBackward0>)
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        normal = exact * torch.rsqrt(exact.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * normal.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def get_norm(norm: Norm, d_model: int, eps: float, *, bias: bool) -> LayerNorm | RMSNorm:
    """Build a norm by name: "layer", or "rms" without a bias.

    Raises:
        ValueError: an unknown name.
    """
    if norm == "layer":
        return LayerNorm(d_model, eps, bias=bias)
    if norm == "rms":
        return RMSNorm(d_model, eps)
    raise ValueError(f'norm is "layer" or "rms"; got {norm!r}')
