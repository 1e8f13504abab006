"""The position-wise feed-forward network and its activations, as equations."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def feedforward(
    x: Float[Tensor, "*batch D"],
    w1: Float[Tensor, "F D"],
    b1: Float[Tensor, "F"],
    w2: Float[Tensor, "D F"],
    b2: Float[Tensor, "D"],
    activation: Callable[[Tensor], Tensor] = torch.relu,
) -> Float[Tensor, "*batch D"]:
    """Apply two linear maps with an activation in between, at every position.

    Equation: FFN(X) = act(X W₁ + b₁) W₂ + b₂
    Source: Section 3.3, equation 2, where act is ReLU
    """
    return contract(activation(expand(x, w1, b1)), w2, b2)


def expand(x: Float[Tensor, "*batch D"], w1: Float[Tensor, "F D"], b1: Float[Tensor, "F"]) -> Float[Tensor, "*batch F"]:
    """Apply the first linear map.

    Equation: U = X W₁ + b₁
    Source: Section 3.3
    """
    return x @ w1.T + b1


def contract(
    u: Float[Tensor, "*batch F"], w2: Float[Tensor, "D F"], b2: Float[Tensor, "D"]
) -> Float[Tensor, "*batch D"]:
    """Apply the second linear map.

    Equation: FFN(X) = U′ W₂ + b₂
    Source: Section 3.3
    """
    return u @ w2.T + b2


def relu(u: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Apply ReLU: replace negative elements by 0.

    Equation: U′ = max(0, U)
    Source: Section 3.3
    """
    return torch.clamp(u, min=0)


def gelu(u: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Apply GELU: multiply each element by the standard normal distribution function at it.

    Equation: U′ = U · ½ (1 + erf(U / √2))
    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"
    """
    return u * 0.5 * (1.0 + torch.erf(u / math.sqrt(2.0)))


def gelu_tanh(u: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Apply the tanh approximation of GELU, from the first BERT and GPT code.

    Equation: U′ = U · ½ (1 + tanh(√(2/π) (U + 0.044715 U³)))
    Source: Hendrycks and Gimpel 2016, Section 2
    """
    return u * 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (u + 0.044715 * u**3)))


def silu(u: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Apply SiLU, also called swish: multiply each element by its logistic function.

    Equation: U′ = U / (1 + exp(−U))
    Source: Ramachandran et al. 2017, "Searching for Activation Functions"; used in Marian's models
    """
    return u / (1.0 + torch.exp(-u))


def gate(activated: Float[Tensor, "*any"], linear: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Apply a gate: multiply one half of the hidden layer by the activated other half.

    Equation: U′ = act(U_1) ⊙ U_2
    Source: Shazeer 2020, "GLU Variants Improve Transformer", equation 6 (GEGLU)
    """
    return activated * linear
