"""Gradient clipping by the global norm."""

import math
from typing import Annotated

from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from clearhead.train.regularizers.base import Ablation, Regularizer, false_to_none


def clip_gradients(model: nn.Module, max_norm: float | None) -> Tensor:
    """Clip the gradients of a model and return their norm before clipping.

    Equation: g ← g · min(1, c / ‖g‖)
    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", Algorithm 1

    Args:
        model: the model, after the backward pass.
        max_norm: c; None clips nothing.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    return nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm)


GRADIENT_CLIPPING = Regularizer(
    name="gradient_clipping",
    value_type=Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(false_to_none)],
    default=1.0,
    meaning="maximum norm of all gradients together.",
    equation="g ← g · min(1, c / ‖g‖) over all parameters",
    without="gradients are not clipped",
    source="Pascanu et al. 2013",
    code="train/regularizers/gradient_clipping.py",
    ablation=Ablation(off={"gradient_clipping": None}, on={"gradient_clipping": 1.0}),
)
