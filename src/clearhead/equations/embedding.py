"""From token ids to vectors."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def embed(ids: Int[Tensor, "*batch"], weight: Float[Tensor, "vocabulary D"]) -> Float[Tensor, "*batch D"]:
    """The row of each token, as the product of its one-hot vector with the table.

    Equation: X = onehot(ids) W_E
    Source: Section 3.4 of "Attention Is All You Need"
    """
    one_hot = torch.nn.functional.one_hot(ids.long(), weight.shape[0]).to(weight.dtype)
    return one_hot @ weight


def add_token_types(
    x: Float[Tensor, "B L D"], types: Int[Tensor, "B L"], weight: Float[Tensor, "types D"]
) -> Float[Tensor, "B L D"]:
    """Which of two joined texts a token belongs to, as a vector that is added.

    Equation: X′ = X + onehot(types) W_T
    Source: Devlin et al. 2018, "BERT", Section 3
    """
    return x + embed(types, weight)
