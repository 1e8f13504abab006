"""Embeddings and output logits, as equations."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def embed(ids: Int[Tensor, "*batch"], weight: Float[Tensor, "vocabulary D"]) -> Float[Tensor, "*batch D"]:
    """Look up the embedding of each token, as the product of its one-hot vector and the table.

    Equation: X = onehot(ids) W_E
    Source: Section 3.4 of "Attention Is All You Need"
    """
    one_hot = torch.nn.functional.one_hot(ids.long(), weight.shape[0]).to(weight.dtype)
    return one_hot @ weight


def add_token_types(
    x: Float[Tensor, "B L D"], types: Int[Tensor, "B L"], weight: Float[Tensor, "types D"]
) -> Float[Tensor, "B L D"]:
    """Add a vector for the segment that each token belongs to.

    Equation: X′ = X + onehot(types) W_T
    Source: Devlin et al. 2018, "BERT", Section 3
    """
    return x + embed(types, weight)


def project_embeddings(
    x: Float[Tensor, "*batch E"], weight: Float[Tensor, "D E"], bias: Float[Tensor, "D"]
) -> Float[Tensor, "*batch D"]:
    """Project embeddings of width E to the width of the layers.

    Equation: X′ = X W_P + b_P
    Source: Lan et al. 2019, "ALBERT", Section 3.1
    """
    return x @ weight.T + bias


def scale_embeddings(x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """Scale the token embeddings to the size of the sinusoids that are added to them.

    Equation: X′ = X √d_model
    Source: Section 3.4 of "Attention Is All You Need"
    """
    return x * math.sqrt(x.shape[-1])


def scale_hidden(h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """Scale the decoder's hidden states down, for an output matrix with large weights.

    Equation: H′ = H / √d_model
    Source: Raffel et al. 2020, "T5", in the authors' code, where that matrix is the token embedding
    """
    return h / math.sqrt(h.shape[-1])


def unembed(
    h: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "vocabulary D"],
    bias: Float[Tensor, "vocabulary"] | None = None,
) -> Float[Tensor, "*batch vocabulary"]:
    """Compute the logits of all tokens from hidden states, with the transposed embedding matrix.

    Equation: logits = H W_Eᵀ + b
    Source: Section 3.4 of "Attention Is All You Need"; Press and Wolf 2017; Marian and BART have a b
    """
    logits = h @ weight.T
    return logits if bias is None else logits + bias
