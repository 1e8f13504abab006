"""Weight decay in the optimizer and the L2 penalty in the loss, both on matrices only."""

from typing import Annotated

from pydantic import Field
from torch import nn

from clearhead.equations import losses
from clearhead.train.recipe.sections import RecipeBase
from clearhead.train.regularizers.base import Ablation, Conflicts, Regularizer, TaskTraits


def decayed_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained matrices of a model; decay and penalty exclude biases and norms."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim > 1]


WEIGHT_DECAY = Regularizer(
    name="weight_decay",
    value_type=Annotated[float, Field(ge=0)],
    default=0.0,
    meaning="decoupled weight decay (AdamW) of matrices; biases and norms are excluded.",
    equation="w ← w − η λ w in the update, matrices only",
    without="λ = 0",
    source="Loshchilov and Hutter 2019",
    code="train/regularizers/weight_decay.py",
    ablation=Ablation(off={"weight_decay": 0.0}, on={"weight_decay": 0.01}),
)


def _penalty_conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    if recipe.training.fsdp and recipe.regularize.l2_penalty:
        yield "training.fsdp", "is incompatible with regularize.l2_penalty; use regularize.weight_decay instead"


L2_PENALTY = Regularizer(
    name="l2_penalty",
    value_type=Annotated[float, Field(ge=0)],
    default=0.0,
    meaning="λ of the penalty λ/2 Σ w² in the loss, over the same matrices as weight_decay. Unlike weight decay, its "
    "gradient passes through Adam's moments.",
    equation="+ λ / 2 Σ w² in the loss, the same matrices",
    without="λ = 0",
    source="Krogh and Hertz 1991",
    code="equations/losses.py",
    ablation=Ablation(off={"l2_penalty": 0.0}, on={"l2_penalty": 1e-4}),
    conflicts=_penalty_conflicts,
    penalty=lambda model, coefficient: losses.l2_penalty(decayed_parameters(model), coefficient),
)
