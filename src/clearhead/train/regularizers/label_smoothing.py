"""Label smoothing of the task's loss."""

from collections.abc import Callable

from torch import Tensor

from clearhead.train.recipe.sections import Probability, RecipeBase
from clearhead.train.regularizers.base import Ablation, Conflicts, LossInputs, Regularizer, TaskTraits
from clearhead.train.tasks.predictions import EmbeddingPredictions, ScorePredictions, task_loss


def _conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    if task.predicts in (EmbeddingPredictions, ScorePredictions) and recipe.regularize.label_smoothing:
        yield "regularize.label_smoothing", f"requires a task that predicts classes or tokens, not {recipe.task}"


def _loss(inputs: LossInputs, loss: Callable[[], Tensor]) -> Tensor:
    return task_loss(inputs.prediction, inputs.regularize.label_smoothing)


LABEL_SMOOTHING = Regularizer(
    name="label_smoothing",
    value_type=Probability,
    default=0.0,
    meaning="ε of the target distribution (1 − ε) onehot + ε / V.",
    equation="targets (1 − ε) onehot(t) + ε / V",
    without="ε = 0: all probability on one token",
    source="Szegedy et al. 2016, 7; paper, 5.4",
    code="equations/losses.py",
    ablation=Ablation(off={"label_smoothing": 0.0}, on={"label_smoothing": 0.1}),
    conflicts=_conflicts,
    loss=_loss,
    replaces_loss=True,
)
