"""What turns an encoder's hidden states into an answer."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Pooling = Literal["mean", "cls", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


class Pooler(nn.Module):
    """BERT's summary of a text: a tanh layer over the first token.

    Equation: p = tanh(h_1 W_p + b_p)
    Source: Devlin et al. 2018, "BERT", in the authors' code
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B D"]:
        return torch.tanh(self.dense(hidden[:, 0]))


def pool(hidden: Float[Tensor, "B L D"], keep: Bool[Tensor, "B L"], pooling: Pooling) -> Float[Tensor, "B D"]:
    """One vector for each text, over its kept tokens.

    Equation: mean: Σ_i keep_i h_i / Σ_i keep_i; cls: h of the first kept token; max: max over kept i of h_i
    Source: Reimers and Gurevych 2019, "Sentence-BERT", Section 3

    Args:
        hidden: hidden states (B, L, D).
        keep: bool (B, L), True at the tokens that count. A row without any gives zeros.
        pooling: "mean", "cls" or "max".

    Raises:
        ValueError: another pooling.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is one of {', '.join(POOLINGS)}; got {pooling!r}")
    keep_BL1 = keep[:, :, None]
    if pooling == "cls":
        first_B = keep.to(torch.uint8).argmax(dim=1)
        return hidden[torch.arange(len(hidden), device=hidden.device), first_B] * keep.any(dim=1)[:, None]
    if pooling == "max":
        return hidden.masked_fill(~keep_BL1, float("-inf")).amax(dim=1).masked_fill(~keep.any(dim=1)[:, None], 0.0)
    # padding is left out by where, not by a product: what stands there may be anything, also infinite
    total = torch.where(keep_BL1, hidden, 0.0).sum(dim=1)
    return total / keep_BL1.sum(dim=1).clamp(min=1)
