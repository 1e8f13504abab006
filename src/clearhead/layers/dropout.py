"""Dropout with cheap draws, for training on a CPU."""

from jaxtyping import Float
from torch import Tensor, nn

from clearhead.kernels.dropout import fast_dropout, keep_probability


class Dropout(nn.Module):
    """In training, each number is zeroed with probability p and the rest scaled up; outside training, nothing changes.

    Equation: x ⊙ m / (1 − p), m ~ Bernoulli(1 − p); x itself outside training
    Source: Section 5.4 of "Attention Is All You Need"; Srivastava et al. 2014

    Args:
        drop_prob: p, from 0 up to, not including, 1; rounded to a multiple of 1 / 65536 on the CPU.

    The same distribution as `torch.nn.Dropout`, but other draws from the same seed. On other devices it is that one.

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
    """Puts a `Dropout` in the place of each `nn.Dropout` in a model: the same training, faster on a CPU.

    It has no weights: what is saved and loaded stays the same. A run that must draw as torch.nn does leaves it out.

    Args:
        model: changed in place.

    >>> from torch import nn; from clearhead.layers.dropout import use_fast_dropout
    >>> model = nn.Sequential(nn.Dropout(0.3)); use_fast_dropout(model); model
    Sequential(
      (0): Dropout(0.3)
    )
    """
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children would give a shared one once only
            if type(child) is nn.Dropout and child.p < 1:
                setattr(parent, name, Dropout(child.p).train(child.training))
