"""Layer normalisation and the residual sum, written out."""

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
    """The last dimensions brought to mean 0 and variance 1, then scaled and shifted.

    Equation: LN(x) = γ ⊙ (x − μ) / √(σ² + ε) + β
    Source: Ba et al. 2016, "Layer Normalization", equation 4; σ² is the biased variance, ε stands inside the root

    Args:
        x: any shape that ends with parameters_shape.
        gamma, beta: of shape parameters_shape; 1 and 0 where not given.
    """
    over = tuple(range(-len(parameters_shape), 0))
    mean = x.mean(dim=over, keepdim=True)
    variance = (x - mean).square().mean(dim=over, keepdim=True)
    normal = (x - mean) / torch.sqrt(variance + eps)
    scaled = normal if gamma is None else gamma * normal
    return scaled if beta is None else scaled + beta


def rms_norm(
    x: Float[Tensor, "..."], gamma: Float[Tensor, "D"] | None = None, *, eps: float = 1e-6
) -> Float[Tensor, "..."]:
    """The last dimension brought to mean square 1, then scaled; nothing is subtracted.

    Equation: RMSNorm(x) = γ ⊙ x / √(mean(x²) + ε)
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4; T5 calls it its layer norm
    """
    normal = x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return normal if gamma is None else gamma * normal


def residual_add(x: Float[Tensor, "*any"], change: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The residual connection: what a sub-layer found is added to what it was given.

    Equation: X + f(X)
    Source: Section 3.1 of "Attention Is All You Need"
    """
    return x + change


def dropout(x: Float[Tensor, "*any"], drop_prob: float) -> Float[Tensor, "*any"]:
    """In training, each number is zeroed with probability p and the rest scaled up, so that the mean stays.

    Equation: x ⊙ m / (1 − p), m ~ Bernoulli(1 − p); x itself outside training
    Source: Section 5.4; Srivastava et al. 2014
    """
    return x * (torch.rand_like(x) >= drop_prob) / (1.0 - drop_prob)
