"""Layer normalisation."""

import operator
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class LayerNorm(nn.Module):
    """Layer normalisation over the last dimensions.

    Equation: LN(x) = γ ⊙ (x − μ) / √(σ² + ε) + β
    Source: Ba et al. 2016, "Layer Normalization"; `clearhead.equations.norm.layer_norm` writes it out

    Args:
        parameters_shape: the last dimensions of the input, as an int or a sequence.
        eps: added to the biased variance, inside the root.
        bias: whether there is a β.

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
