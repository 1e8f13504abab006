"""What a checkpoint puts before a text for one of its tasks, and how it generates there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from clearhead.generation.config import GenerationConfig, GenerationOptions, read_settings
from clearhead.io.json import read_json


@dataclass(frozen=True)
class TaskPrompts:
    """The tasks that a config.json describes under task_specific_params, as T5's and BART's do.

    Args:
        tasks: name -> a prefix and settings of the generation.
        task: the one that is set up; None for none.
    """

    tasks: Mapping[str, Mapping[str, Any]]
    task: str | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> "TaskPrompts":
        """The tasks of the model in a folder."""
        tasks = read_json(folder / "config.json").get("task_specific_params") or {}
        if not isinstance(tasks, dict) or not all(isinstance(said, dict) for said in tasks.values()):
            raise ValueError(
                f"{folder / 'config.json'} says task_specific_params={tasks!r}; objects by task are wanted"
            )
        return cls(tasks)

    def chosen(self, task: str) -> "TaskPrompts":
        """These, with a task set up.

        Raises:
            ValueError: a task that is not described.
        """
        if task not in self.tasks:
            known = ", ".join(self.tasks) or "none"
            raise ValueError(f"this model's config.json describes no task {task!r}; it describes {known}")
        return replace(self, task=task)

    @property
    def before(self) -> str:
        """What is put before every text."""
        prefix = self.tasks[self.task].get("prefix") if self.task is not None else None
        return prefix if isinstance(prefix, str) else ""

    def settings(self, general: GenerationConfig) -> GenerationConfig:
        """How to generate for the task."""
        if self.task is None:
            return general
        settings = {key: value for key, value in self.tasks[self.task].items() if key != "prefix"}
        read_settings(settings, general.beam_size, f"config.json's task {self.task}")  # refuses what is not understood
        said = {"beam_size" if key == "num_beams" else key: value for key, value in self.tasks[self.task].items()}
        known = {key: value for key, value in said.items() if key in GenerationOptions.__annotations__}
        return general.changed(**cast(GenerationOptions, known))
