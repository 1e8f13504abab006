"""The recipe: all settings of a training run."""

from typing import TYPE_CHECKING, Any

from pydantic import create_model

from clearhead.train.recipe.sections import RecipeBase, Section
from clearhead.train.regularizers import REGULARIZERS

if TYPE_CHECKING:

    class Regularize(Section):
        """Regularizers, one key each; created from `REGULARIZERS`."""

        def __getattr__(self, name: str) -> Any: ...

else:
    Regularize = create_model(
        "Regularize",
        __base__=Section,
        __module__=__name__,
        __doc__="Regularizers, one key each; false turns one off.\n\nArgs:\n"
        + "\n".join(f"    {entry.name}: {entry.meaning}" for entry in REGULARIZERS),
        **{entry.name: (entry.value_type, entry.default) for entry in REGULARIZERS},
    )


class Recipe(RecipeBase):
    """Settings of a training run.

    Args:
        task: name of the training task.
        output: folder of the run and of the trained model.
        data: training and validation data, a section below.
        tokenizer: tokenizer to load or to train, a section below.
        model: sizes of a new model, or a checkpoint, a section below.
        regularize: regularizers, a section below.
        optimizer: AdamW or Muon, and the schedule, a section below.
        training: duration, device and precision, a section below.
        validation: evaluation during training, a section below.
        objective: settings of the task; its keys depend on the task.
        seed: seed of the initial weights, the data order and all random numbers.

    >>> from clearhead.train.recipe.recipe import Recipe
    >>> recipe = Recipe(task="classification", output="run", data={"train": "a.tsv"}, training={"epochs": 1})
    >>> recipe.regularize.dropout.residual
    0.1
    """

    regularize: Regularize = Regularize()
