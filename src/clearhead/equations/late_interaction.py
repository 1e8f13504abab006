"""Late interaction: scores from the token vectors of a query and of documents (ColBERT)."""

from jaxtyping import Bool, Float
from torch import Tensor


def max_sim(
    query: Float[Tensor, "L D"], documents: Float[Tensor, "B M D"], keep: Bool[Tensor, "B M"]
) -> Float[Tensor, "B"]:
    """Return the score of a query with each document: the sum of the best match of each vector of the query.

    Equation: S(q, d) = Σ_i max_j q_i · d_j
    Source: Khattab and Zaharia 2020, "ColBERT", equation 3

    Args:
        query: vectors of the query's tokens (L, D).
        documents: vectors of the documents' tokens (B, M, D), M at least 1.
        keep: bool (B, M), True at vectors of the document and False at padding. A document without any scores −∞.

    >>> import torch
    >>> max_sim(torch.eye(2), torch.tensor([[[1.0, 0.0], [0.6, 0.8]]]), torch.ones(1, 2, dtype=torch.bool))
    tensor([1.8000])
    """
    scores_BLM = (query @ documents.mT).masked_fill(~keep[:, None, :], float("-inf"))
    return scores_BLM.amax(dim=2).sum(dim=1)
