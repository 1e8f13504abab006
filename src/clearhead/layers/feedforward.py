"""Position-wise feed-forward networks, plain and gated."""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu"]

GATES: dict[str, Activation] = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
"""Gated activations and the activation of their gate."""


class PositionwiseFeedForward(nn.Module):
    """The position-wise feed-forward network: two linear layers with an activation in between.

    Equation: FFN(X) = act(X W₁ + b₁) W₂ + b₂
    Source: Section 3.3 of "Attention Is All You Need"; dropout follows the activation

    Args:
        d_model: width D of input and output.
        hidden: width F between the linear layers.
        drop_prob: dropout after the activation.
        activation: "relu" (the paper's), "gelu" (exact), "gelu_tanh" (its tanh approximation) or "silu".
        bias: whether b₁ and b₂ exist.

    The weights are initialized as in two `torch.nn.Linear`, in order.

    >>> import torch; from clearhead import PositionwiseFeedForward
    >>> PositionwiseFeedForward(512, 2048, 0.1)(torch.rand(2, 10, 512)).shape
    torch.Size([2, 10, 512])
    """

    def __init__(
        self,
        d_model: int,
        hidden: int,
        drop_prob: float = 0.1,
        *,
        activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, hidden, bias=bias)
        self.activation = get_activation(activation)
        self.dropout = nn.Dropout(drop_prob)
        self.out = nn.Linear(hidden, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        y: Tensor = self.out(self.dropout(self.activation(self.inner(x))))
        return y


class GatedFeedForward(nn.Module):
    """The gated feed-forward network: the first linear layer is twice as wide, and one half gates the other.

    Equation: FFN(X) = (act(X W_1) ⊙ X W_g) W_2
    Source: Shazeer 2020, "GLU Variants Improve Transformer", equation 6 (ReGLU, GEGLU, SwiGLU)

    Args:
        d_model, hidden, drop_prob, bias: as in `PositionwiseFeedForward`. The rows of the first layer are [W_1; W_g].
        activation: "gelu" (exact), "gelu_tanh" (T5), "silu" (EuroBERT) or "relu".
        inner_bias: whether the first layer has a bias; bias where None.

    >>> import torch
    >>> from clearhead import GatedFeedForward
    >>> GatedFeedForward(8, 16)(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        d_model: int,
        hidden: int,
        drop_prob: float = 0.1,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
        inner_bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, 2 * hidden, bias=bias if inner_bias is None else inner_bias)
        self.activation = get_activation(activation)
        self.dropout = nn.Dropout(drop_prob)
        self.out = nn.Linear(hidden, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        u, gate = self.inner(x).chunk(2, dim=-1)
        y: Tensor = self.out(self.dropout(self.activation(u) * gate))
        return y


def feedforward(
    d_model: int,
    hidden: int,
    drop_prob: float,
    *,
    activation: Activation,
    bias: bool,
    inner_bias: bool | None = None,
) -> PositionwiseFeedForward | GatedFeedForward:
    """Build the feed-forward network of an activation; those in `GATES` are gated.

    Raises:
        ValueError: an inner_bias other than bias for a network that is not gated.
    """
    if activation in GATES:
        gate = GATES[activation]
        return GatedFeedForward(d_model, hidden, drop_prob, activation=gate, bias=bias, inner_bias=inner_bias)
    if inner_bias not in (None, bias):
        raise ValueError(f"inner_bias={inner_bias} requires a gated activation, {', '.join(GATES)}; got {activation!r}")
    return PositionwiseFeedForward(d_model, hidden, drop_prob, activation=activation, bias=bias)


def get_activation(name: str) -> nn.Module:
    """Return a new activation module by name.

    Raises:
        ValueError: an unknown name.
    """
    known: dict[str, Callable[[], nn.Module]] = {
        "relu": nn.ReLU,
        "gelu": nn.GELU,
        "gelu_tanh": _gelu_tanh,
        "silu": nn.SiLU,
        "tanh": nn.Tanh,
    }
    if name not in known:
        raise ValueError(f"activation is one of {', '.join(known)}; got {name!r}")
    return known[name]()


def _gelu_tanh() -> nn.Module:
    return nn.GELU(approximate="tanh")
