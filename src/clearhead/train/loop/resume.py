"""Resume a run: check that the output folder, the recipe, the data and the threads are those of the saved run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead.train.distributed.process_group import world_size
from clearhead.train.loop.callback import TrainingCallback
from clearhead.train.loop.checkpointing import STATE, read_state
from clearhead.train.recipe.load import describe_differences, flatten
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.renamed import RENAMED_KEYS

RECIPE_FILE, VERSIONS_FILE = "recipe.yaml", "versions.json"
"""Files that a run writes into its folder when training starts, the versions first."""

_NOT_LEARNED = ("output:", "training.fsdp:")
"""Keys that may change when a run is resumed."""


def check_folder(recipe: Recipe, resume: bool) -> bool:
    """Check that the output folder contains a run to resume, or nothing that a new run would overwrite.

    Args:
        recipe: the recipe.
        resume: whether to resume a run. Without a checkpoint, a new run starts.

    Returns:
        Whether there is a run to resume.

    Raises:
        ValueError: the folder contains files that a new run would overwrite.
    """
    folder = Path(recipe.output)
    has_checkpoint = (folder / STATE).is_file()
    if resume and has_checkpoint:
        return True
    if has_checkpoint:
        raise ValueError(f"{folder} already contains a run; use --resume to continue it, or choose another output")
    for name in ("config.json", "model.safetensors"):
        if (folder / name).exists():
            raise ValueError(f"{folder} already contains a model ({name}), which is kept; choose another output")
    if (folder / "index.json").exists():
        raise ValueError(f"{folder} is an index, which is kept; choose another output")
    # a run writes its recipe after its versions, so a recipe alone is a user's file
    if (folder / RECIPE_FILE).exists() and not (folder / VERSIONS_FILE).exists():
        raise ValueError(f"{folder / RECIPE_FILE} was not written by a run and is kept; choose another output")
    return False


@dataclass(frozen=True)
class SavedRun:
    """State of an interrupted run.

    Args:
        recipe: the recipe of the resumed run.
        state: contents of its checkpoint.
    """

    recipe: Recipe
    state: Mapping[str, Any]

    @classmethod
    def read(cls, recipe: Recipe, device: str) -> "SavedRun":
        """Read the checkpoint in a recipe's output folder.

        Args:
            recipe: the recipe.
            device: type of the device, such as "cpu".

        Raises:
            ValueError: the checkpoint is damaged, or belongs to another recipe or number of threads.
        """
        saved = cls(recipe, read_state(Path(recipe.output) / STATE))
        saved._check_recipe()
        saved._check_threads(device)
        return saved

    def check_data(self, data: object) -> None:
        """Check that the tokenizer and the examples are the same.

        Raises:
            ValueError: they changed.
        """
        if self.state["clearhead"]["data"] != data:
            raise ValueError(
                f"the data of the run in {self.recipe.output}, or its tokenizer, changed; resuming requires the same "
                "data"
            )

    def check_teacher(self, weights: str | None) -> None:
        """Check that the teacher has the same weights. Checkpoints of older versions contain no hash of them.

        Raises:
            ValueError: they changed.
        """
        if self.state["clearhead"].get("teacher", weights) != weights:
            raise ValueError(
                f"the teacher of the run in {self.recipe.output} has other weights now; resuming requires the same "
                "teacher"
            )

    def restore(self, callback: TrainingCallback) -> None:
        """Restore the callback's state."""
        callback.load_state_dict(self.state["callbacks"][callback.state_key])

    def _check_recipe(self) -> None:
        saved = {RENAMED_KEYS.get(key, key): value for key, value in self.state["clearhead"]["recipe"].items()}
        differences = describe_differences(saved, flatten(self.recipe))
        differences = [line for line in differences if not line.startswith(_NOT_LEARNED)]
        if differences:
            raise ValueError(
                f"the run in {self.recipe.output} has another recipe and cannot be resumed: {'; '.join(differences)}"
            )

    def _check_threads(self, device: str) -> None:
        """Check the number of threads, because sums are split between them.

        With another number of processes the weights differ anyway. Checkpoints of older versions or of an accelerator
        contain no number of threads.
        """
        identity = self.state["clearhead"]
        before, now = identity.get("threads"), torch.get_num_threads()
        if device == "cpu" and before not in (None, now) and identity.get("processes") == world_size():
            raise ValueError(
                f"the run in {self.recipe.output} used {before} threads, and now there are {now}: the weights would "
                f"differ from those of an uninterrupted run. Set OMP_NUM_THREADS={before}"
            )
