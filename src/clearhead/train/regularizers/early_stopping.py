"""Early stopping: training ends when validation stops improving."""

import math
from typing import Annotated

from pydantic import BeforeValidator, Field

from clearhead.train.recipe.sections import Count, RecipeBase, Section
from clearhead.train.regularizers.base import Ablation, Conflicts, Regularizer, TaskTraits, false_to_none

LOWER_IS_BETTER = frozenset({"loss", "perplexity"})
"""Metrics that improve downwards; all others improve upwards."""


class EarlyStopping(Section):
    """Stop when validation no longer improves (Prechelt 1998).

    Args:
        patience: validations in a row without improvement.
        min_delta: smallest change of the metric that counts as an improvement.
    """

    patience: Count = 5
    min_delta: Annotated[float, Field(ge=0)] = 0.0


def is_better(metric: str, new: float, old: float, min_delta: float = 0.0) -> bool:
    """Return whether a metric improved by more than min_delta; any number is better than NaN."""
    if math.isnan(old):
        return not math.isnan(new)
    return new < old - min_delta if metric in LOWER_IS_BETTER else new > old + min_delta


class ImprovementTracker:
    """Count validations without improvement.

    Args:
        metric: name of the monitored metric.
        settings: None only counts and never stops.
    """

    def __init__(self, metric: str, settings: EarlyStopping | None) -> None:
        self.metric, self._settings = metric, settings
        self.best = math.nan
        self.num_bad = 0

    def update(self, value: float) -> bool:
        """Record the metric of a validation; return whether training should stop."""
        if is_better(self.metric, value, self.best, self._settings.min_delta if self._settings else 0.0):
            self.best, self.num_bad = value, 0
        else:
            self.num_bad += 1
        return self._settings is not None and self.num_bad >= self._settings.patience


def _conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    if recipe.regularize.early_stopping is not None and recipe.data.validation is None:
        yield "regularize.early_stopping", "requires data.validation"


EARLY_STOPPING = Regularizer(
    name="early_stopping",
    value_type=Annotated[EarlyStopping | None, BeforeValidator(false_to_none)],
    default=None,
    meaning="stops training when validation.monitor no longer improves.",
    equation="ends after `patience` validations without a better `validation.monitor`",
    without="trains to the end",
    source="Prechelt 1998",
    code="train/regularizers/early_stopping.py",
    ablation=Ablation(off={"early_stopping": None}, on={"early_stopping": {"patience": 3}}),
    conflicts=_conflicts,
)
