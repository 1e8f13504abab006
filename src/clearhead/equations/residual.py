"""The residual connection and its dropout, as equations."""

import torch
from jaxtyping import Float
from torch import Tensor


def residual_add(x: Float[Tensor, "*any"], change: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Add the output of a sub-layer to its input.

    Equation: X + f(X)
    Source: Section 3.1 of "Attention Is All You Need"
    """
    return x + change


def dropout(x: Float[Tensor, "*any"], drop_prob: float) -> Float[Tensor, "*any"]:
    """Zero each element with probability p and scale the others up, so that the mean is unchanged.

    Equation: x ⊙ m / (1 − p), m ~ Bernoulli(1 − p); x itself outside training
    Source: Section 5.4; Srivastava et al. 2014
    """
    return x * (torch.rand_like(x) >= drop_prob) / (1.0 - drop_prob)
