"""From token ids to vectors."""

import math

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


def scale_embeddings(x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """The embedded tokens, made as large as the sinusoids beside them.

    Equation: X′ = X √d_model
    Source: Section 3.4 of "Attention Is All You Need"
    """
    return x * math.sqrt(x.shape[-1])


def scale_hidden(h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """The decoder's hidden states, made small for an output matrix whose numbers are not.

    Equation: H′ = H / √d_model
    Source: Raffel et al. 2020, "T5", in the authors' code, where that matrix is the embedding's
    """
    return h / math.sqrt(h.shape[-1])


def unembed(
    h: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "vocabulary D"],
    bias: Float[Tensor, "vocabulary"] | None = None,
) -> Float[Tensor, "*batch vocabulary"]:
    """From the decoder's hidden states to a score for each token: the embedding's own matrix, the other way round.

    Equation: logits = H W_Eᵀ + b
    Source: Section 3.4 of "Attention Is All You Need"; Press and Wolf 2017; b is Marian's and BART's
    """
    logits = h @ weight.T
    return logits if bias is None else logits + bias
