"""Layer normalization, with and without the mean, as equations."""

import torch
from jaxtyping import Float
from torch import Tensor


def layer_norm(
    x: Float[Tensor, "..."],
    gamma: Float[Tensor, "..."] | None = None,
    beta: Float[Tensor, "..."] | None = None,
    *,
    parameters_shape: tuple[int, ...],
    eps: float = 1e-5,
) -> Float[Tensor, "..."]:
    """Normalize the last dimensions to mean 0 and variance 1, then scale and shift them.

    Equation: LN(x) = γ ⊙ (x − μ) / √(σ² + ε) + β
    Source: Ba et al. 2016, "Layer Normalization", equation 4; σ² is the biased variance, ε stands inside the root

    Args:
        x: any shape that ends with parameters_shape.
        gamma, beta: of shape parameters_shape; 1 and 0 where None.
        parameters_shape: the dimensions to normalize over.
        eps: ε.
    """
    dims = tuple(range(-len(parameters_shape), 0))
    mean = x.mean(dim=dims, keepdim=True)
    variance = (x - mean).square().mean(dim=dims, keepdim=True)
    normal = (x - mean) / torch.sqrt(variance + eps)
    scaled = normal if gamma is None else gamma * normal
    return scaled if beta is None else scaled + beta


def rms_norm(
    x: Float[Tensor, "..."], gamma: Float[Tensor, "D"] | None = None, *, eps: float = 1e-6
) -> Float[Tensor, "..."]:
    """Normalize the last dimension to mean square 1, then scale it; no mean is subtracted.

    Equation: RMSNorm(x) = γ ⊙ x / √(mean(x²) + ε)
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4; T5 calls it its layer norm

    Args:
        x: any shape that ends with D.
        gamma: (D); 1 where None.
        eps: ε.
    """
    normal = x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return normal if gamma is None else gamma * normal
