"""Regularizers, one file per regularizer: write its `Regularizer` and add it to `REGULARIZERS`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from clearhead.train.recipe.sections import RecipeBase
from clearhead.train.regularizers.attention_masking import ATTENTION_MASKING
from clearhead.train.regularizers.augmentation import AUGMENTATION
from clearhead.train.regularizers.base import Conflicts, LossInputs, Regularizer, TaskTraits
from clearhead.train.regularizers.distillation import DISTILLATION
from clearhead.train.regularizers.dropout import DROPOUT, LAYER_DROP
from clearhead.train.regularizers.early_stopping import EARLY_STOPPING
from clearhead.train.regularizers.gradient_clipping import GRADIENT_CLIPPING
from clearhead.train.regularizers.label_smoothing import LABEL_SMOOTHING
from clearhead.train.regularizers.layer_norm import LAYER_NORM
from clearhead.train.regularizers.r_drop import R_DROP
from clearhead.train.regularizers.weight_decay import L2_PENALTY, WEIGHT_DECAY
from clearhead.train.tasks.predictions import task_loss

REGULARIZERS: tuple[Regularizer, ...] = (
    *(DROPOUT, LAYER_DROP, ATTENTION_MASKING, LAYER_NORM),
    *(WEIGHT_DECAY, L2_PENALTY, GRADIENT_CLIPPING),
    *(LABEL_SMOOTHING, R_DROP, DISTILLATION),
    *(AUGMENTATION, EARLY_STOPPING),
)
"""All regularizers. Those that change the loss apply in this order.

`LABEL_SMOOTHING` and `R_DROP` replace the loss. Those after them receive the loss of the one before.
"""


def check_order(regularizers: Sequence[Regularizer]) -> None:
    """Check that each regularizer that replaces the loss comes before those that add a term to it.

    Raises:
        ValueError: a regularizer would drop the term of an earlier one.
    """
    earlier = ""
    for entry in regularizers:
        if entry.loss is not None and entry.replaces_loss and earlier:
            raise ValueError(f"{entry.name} replaces the loss and drops the term of {earlier}; put it before {earlier}")
        if entry.loss is not None and not entry.replaces_loss:
            earlier = entry.name


check_order(REGULARIZERS)


def ablations() -> dict[str, Regularizer]:
    """Return the regularizers that `clearhead ablate` can switch, by the name of their ablation."""
    return {entry.ablation.name or entry.name: entry for entry in REGULARIZERS if entry.ablation}


def regularizer_conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    """Yield the recipe keys that are incompatible with a regularizer, and why; arguments as in `Regularizer`."""
    for entry in REGULARIZERS:
        yield from entry.conflicts(recipe, task)


def config_changes(regularize: Any) -> Mapping[str, float]:
    """Return the fields of the model's config that the regularizers determine, such as dropout rates."""
    changes: dict[str, float] = {}
    for entry in REGULARIZERS:
        if entry.config is not None:
            changes |= entry.config(getattr(regularize, entry.name))
    return changes


def prepare_model(model: nn.Module, regularize: Any) -> None:
    """Apply the regularizers that change the built model."""
    for entry in REGULARIZERS:
        if entry.prepare is not None:
            entry.prepare(model, getattr(regularize, entry.name))


def batch_loss(inputs: LossInputs) -> Tensor:
    """Return the loss of a batch with all regularizers, summed over tokens or examples."""
    loss = partial(task_loss, inputs.prediction)
    for entry in REGULARIZERS:
        if entry.loss is not None and getattr(inputs.regularize, entry.name):
            loss = partial(entry.loss, inputs, loss)
    return loss()


def add_penalties(loss: Tensor, model: nn.Module, regularize: Any) -> Tensor:
    """Add the penalties of an update to its loss."""
    for entry in REGULARIZERS:
        if entry.penalty is not None and getattr(regularize, entry.name):
            loss = loss + entry.penalty(model, getattr(regularize, entry.name))
    return loss
