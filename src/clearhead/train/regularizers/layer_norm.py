"""Layer norm as a switch, to measure its effect."""

from torch import nn

from clearhead.layers.norm import LayerNorm, RMSNorm
from clearhead.train.regularizers.base import Ablation, Regularizer


def remove_norms(model: nn.Module) -> None:
    """Replace every norm of a model with the identity."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, LayerNorm | RMSNorm):
                setattr(module, name, nn.Identity())


def _prepare(model: nn.Module, enabled: bool) -> None:
    if not enabled:
        remove_norms(model)


LAYER_NORM = Regularizer(
    name="layer_norm",
    value_type=bool,
    default=True,
    meaning="false replaces every layer norm with the identity; such a model often diverges, and no other library can "
    "load it.",
    equation="LN(x) = γ (x − μ) / √(σ² + ε) + β",
    without="LN(x) = x: often diverges; no other library loads it",
    source="Ba et al. 2016; paper, 5.4",
    code="equations/norm.py",
    ablation=Ablation(off={"layer_norm": False}, on={"layer_norm": True}),
    prepare=_prepare,
)
