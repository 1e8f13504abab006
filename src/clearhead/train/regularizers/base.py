"""A regularizer as one entry: recipe key, effect, conflicts, documentation and ablation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from clearhead.train.recipe.sections import RecipeBase
from clearhead.train.tasks.predictions import Prediction, TopTokens

Conflicts = Iterator[tuple[str, str]]
"""Pairs of a recipe key and the reason why it is not allowed."""


@runtime_checkable
class TaskTraits(Protocol):
    """Properties of a registered task that regularizers depend on; `TaskEntry` explains them."""

    @property
    def predicts(self) -> type[Prediction]:
        """Type of the predictions of the task's model."""

    @property
    def generates(self) -> bool:
        """Whether the task's model generates texts."""


@dataclass(frozen=True)
class LossInputs:
    """Inputs of the loss of one batch.

    Args:
        prediction: the model's prediction.
        predict: runs the model again, with new dropout.
        predict_teachers: runs the teachers, or returns their stored tokens; only called if the recipe has any.
        regularize: the recipe's section.
    """

    prediction: Prediction
    predict: Callable[[], Prediction]
    predict_teachers: Callable[[], Sequence[Prediction] | TopTokens]
    regularize: Any


@dataclass(frozen=True)
class Ablation:
    """Changes under `regularize` that switch a regularizer off and on.

    Args:
        off, on: key with dots -> value. An empty `on` means that the recipe has to configure it.
        name: name for `clearhead ablate`; the regularizer's name by default.
    """

    off: Mapping[str, Any]
    on: Mapping[str, Any]
    name: str = ""


def _no_conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    yield from ()


@dataclass(frozen=True, kw_only=True)
class Regularizer:
    """One regularizer. Hooks that are None do nothing; the trainer calls the effects of the others by name.

    Args:
        name: key under `regularize`.
        value_type: type of its value, as pydantic checks it.
        default: value if the recipe has none.
        meaning: of the key, for the reference of recipe keys.
        equation, without, source, code: cells of the table in docs/training.md: the effect when on and when off, the
            publication, and the file that computes it.
        ablation: how an ablation switches it.
        conflicts: recipe, traits of its task -> recipe keys that it is incompatible with, and why.
        config: value -> fields of the model's config.
        prepare: changes the built model; called with the model and the value.
        loss: replaces the loss of a batch; called with the inputs and a function that returns the loss without this
            regularizer.
        replaces_loss: whether `loss` ignores the loss without this regularizer. Such regularizers come before those
            that add a term to the loss.
        penalty: model, value -> term that is added to the loss of an update.
    """

    name: str
    value_type: Any
    default: Any
    meaning: str
    equation: str
    without: str
    source: str
    code: str
    ablation: Ablation | None
    conflicts: Callable[[RecipeBase, TaskTraits], Conflicts] = _no_conflicts
    config: Callable[[Any], Mapping[str, float]] | None = None
    prepare: Callable[[nn.Module, Any], None] | None = None
    loss: Callable[[LossInputs, Callable[[], Tensor]], Tensor] | None = None
    replaces_loss: bool = False
    penalty: Callable[[nn.Module, Any], Tensor] | None = None


def false_to_none(value: object) -> object:
    """Return None for false, so that `regularize.NAME: false` turns a regularizer off."""
    return None if value is False else value
