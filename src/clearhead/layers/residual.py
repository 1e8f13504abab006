"""Residual connections around a sub-layer: one class for each norm order."""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from clearhead.kernels.residual_norm import drop_add_norm, drop_add_norm_isa
from clearhead.layers.dropout import Dropout
from clearhead.layers.norm import LayerNorm, Norm, get_norm

NormOrder = Literal["post", "pre"]
Sublayer = Callable[[Tensor], Tensor]


class PostNorm(nn.Module):
    """A residual connection in the paper's order: the norm follows the sum.

    Equation: LN(x + drop(f(x)))
    Source: Sections 3.1 and 5.4 of "Attention Is All You Need"

    Args:
        d_model: width D of x.
        drop_prob: dropout of f(x).
        eps, bias: as in `LayerNorm`.
        norm: "layer" or "rms".

    `forward(x, f)` applies the sub-layer f to x (..., D).
    """

    def __init__(
        self, d_model: int, drop_prob: float, *, eps: float = 1e-5, bias: bool = True, norm: Norm = "layer"
    ) -> None:
        super().__init__()
        self.dropout: nn.Module = nn.Dropout(drop_prob)
        self.norm = get_norm(norm, d_model, eps, bias=bias)

    def forward(self, x: Float[Tensor, "*batch D"], f: Sublayer) -> Float[Tensor, "*batch D"]:
        change = f(x)
        dropout, norm = self.dropout, self.norm
        is_observed = _has_hooks(dropout) or _has_hooks(norm)
        if self.training and not is_observed and isinstance(dropout, Dropout) and isinstance(norm, LayerNorm):
            isa = drop_add_norm_isa(x, change, norm.weight)
            if isa is not None and norm.bias is not None:
                return drop_add_norm(x, change, dropout.drop_prob, norm.weight, norm.bias, norm.eps, isa)
        # adding two dtypes, as under autocast, would take ten times as long
        normal: Tensor = norm(x + dropout(change).to(x.dtype))
        return normal


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


class PreNorm(nn.Module):
    """A residual connection in the order of most later models: the norm precedes the sub-layer.

    Equation: x + drop(f(LN(x)))
    Source: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture"

    Args:
        d_model, drop_prob, eps, bias, norm: as in `PostNorm`.

    `forward(x, f)` applies the sub-layer f to x (..., D).
    """

    def __init__(
        self, d_model: int, drop_prob: float, *, eps: float = 1e-5, bias: bool = True, norm: Norm = "layer"
    ) -> None:
        super().__init__()
        self.norm: nn.Module = get_norm(norm, d_model, eps, bias=bias)
        self.dropout = nn.Dropout(drop_prob)

    def forward(self, x: Float[Tensor, "*batch D"], f: Sublayer) -> Float[Tensor, "*batch D"]:
        change: Tensor = self.dropout(f(self.norm(x)))
        return x + change.to(x.dtype)


def residual(
    norm_order: NormOrder,
    d_model: int,
    drop_prob: float,
    *,
    eps: float = 1e-5,
    bias: bool = True,
    norm: Norm = "layer",
) -> PostNorm | PreNorm:
    """Build the residual connection of a norm order, "post" or "pre".

    Raises:
        ValueError: an unknown norm order.
    """
    kinds: dict[str, type[PostNorm] | type[PreNorm]] = {"post": PostNorm, "pre": PreNorm}
    if norm_order not in kinds:
        raise ValueError(f'norm_order is "post" (the paper\'s) or "pre"; got {norm_order!r}')
    return kinds[norm_order](d_model, drop_prob, eps=eps, bias=bias, norm=norm)
