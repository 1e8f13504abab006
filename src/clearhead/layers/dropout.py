"""Dropout with fast random masks, for training on a CPU."""

from jaxtyping import Float
from torch import Tensor, nn

from clearhead.kernels.dropout import fast_dropout, keep_probability


class Dropout(nn.Module):
    """Dropout: in training, zero each element with probability p and scale the others up.

    Equation: x ⊙ m / (1 − p), m ~ Bernoulli(1 − p); x itself outside training
    Source: Section 5.4 of "Attention Is All You Need"; Srivastava et al. 2014

    Args:
        drop_prob: p, from 0 up to, not including, 1; rounded to a multiple of 1 / 65536 on the CPU.

    The distribution is that of `torch.nn.Dropout`, but the random masks of a seed differ. On other devices than the
    CPU it uses PyTorch's own dropout.

    Raises:
        ValueError: a drop_prob out of range.

    >>> import torch; from clearhead.layers.dropout import Dropout
    >>> Dropout(0.5)(torch.ones(1000)).unique()
    tensor([0., 2.])
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        keep_probability(drop_prob)
        self.drop_prob = drop_prob

    def forward(self, x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        return fast_dropout(x, self.drop_prob) if self.training and self.drop_prob else x

    def extra_repr(self) -> str:
        return f"{self.drop_prob}"


def use_fast_dropout(model: nn.Module) -> None:
    """Replace each `nn.Dropout` of a model by a `Dropout`, for faster training on a CPU.

    Checkpoints do not change: dropout has no weights. Do not use it to reproduce the random masks of torch.nn.

    Args:
        model: the model, changed in place.

    >>> from torch import nn; from clearhead.layers.dropout import use_fast_dropout
    >>> model = nn.Sequential(nn.Dropout(0.3)); use_fast_dropout(model); model
    Sequential(
      (0): Dropout(0.3)
    )
    """
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children would return a shared module once
            if type(child) is nn.Dropout and child.p < 1:
                setattr(parent, name, Dropout(child.p).train(child.training))
