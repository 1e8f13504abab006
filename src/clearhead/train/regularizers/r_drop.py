"""R-Drop: two passes with different dropout have to agree."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field
from torch import Tensor

from clearhead.equations import losses
from clearhead.kernels.linear_cross_entropy import linear_r_drop
from clearhead.train.recipe.sections import RecipeBase
from clearhead.train.regularizers.base import Ablation, Conflicts, LossInputs, Regularizer, TaskTraits
from clearhead.train.tasks.predictions import (
    ClassPredictions,
    EmbeddingPredictions,
    Prediction,
    ScorePredictions,
    TokenPredictions,
    task_loss,
)


def r_drop_loss(first: Prediction, second: Prediction, smoothing: float, weight: float) -> Tensor:
    """Return the mean loss of two predictions of one batch plus their weighted divergence, summed.

    Equation: L = (L_1 + L_2) / 2 + α · ½ [KL(p_1 ‖ p_2) + KL(p_2 ‖ p_1)]
    Source: Liang et al. 2021, "R-Drop", equations 2 to 4, with half of their α

    Args:
        first, second: two passes with different dropout.
        smoothing: ε of label smoothing.
        weight: α.
    """
    if isinstance(first, TokenPredictions) and isinstance(second, TokenPredictions):
        hidden_1, hidden_2 = (side.output.scale_hidden(side.hidden_ND) for side in (first, second))
        weights, bias, targets = first.vocabulary()
        if first.num_sampled is None:
            return linear_r_drop(hidden_1, hidden_2, weights, targets, bias, smoothing=smoothing, weight=weight)
        smoothed = [side.output.smoothing_loss(side.hidden_ND, side.targets_N, smoothing) for side in (first, second)]
        return linear_r_drop(hidden_1, hidden_2, weights, targets, bias, weight=weight) + sum(smoothed) / 2
    assert isinstance(first, ClassPredictions)
    assert isinstance(second, ClassPredictions)
    mean = (task_loss(first, smoothing) + task_loss(second, smoothing)) / 2
    return mean + weight * losses.r_drop(first.logits_NC, second.logits_NC)


def _loss(inputs: LossInputs, loss: Callable[[], Tensor]) -> Tensor:
    section = inputs.regularize
    return r_drop_loss(inputs.prediction, inputs.predict(), section.label_smoothing, section.r_drop)


_LARGEST = 1e30


def _conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    section = recipe.regularize
    if not section.r_drop:
        return
    if section.r_drop > _LARGEST:
        yield "regularize.r_drop", f"{section.r_drop:g} exceeds float32; expected at most {_LARGEST:g}"
    if task.predicts in (EmbeddingPredictions, ScorePredictions):
        yield "regularize.r_drop", f"requires a task that predicts classes or tokens, not {recipe.task}"
    if not any(section.dropout.model_dump().values()):
        yield "regularize.r_drop", "compares two passes with different dropout; all dropout rates are 0"


R_DROP = Regularizer(
    name="r_drop",
    value_type=Annotated[float, Field(ge=0)],
    default=0.0,
    meaning="weight of the divergence between two passes with different dropout (Liang et al. 2021). It is half of "
    "their α, because the losses of the two passes are averaged here and summed there.",
    equation="+ α · ½ [KL(p ‖ r) + KL(r ‖ p)] of two passes with different dropout, whose losses are averaged (the "
    "paper sums them: its α is twice ours); takes a little more than twice the time",
    without="α = 0",
    source="Liang et al. 2021",
    code="train/regularizers/r_drop.py",
    ablation=Ablation(off={"r_drop": 0.0}, on={"r_drop": 2.5}),
    conflicts=_conflicts,
    loss=_loss,
    replaces_loss=True,
)
