"""Prefix and generation options of each task that a checkpoint describes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from clearhead.generation.config import GenerationConfig, GenerationOptions
from clearhead.generation.config_files import config_from_dict
from clearhead.io.json import read_json


@dataclass(frozen=True)
class TaskPrompts:
    """The tasks in a config.json, under task_specific_params, as in T5's and BART's.

    Args:
        tasks: for each task a prefix and generation options.
        task: the selected task; None for none.
    """

    tasks: Mapping[str, Mapping[str, Any]]
    task: str | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> "TaskPrompts":
        """Read the tasks of the model in a folder."""
        tasks = read_json(folder / "config.json").get("task_specific_params") or {}
        if not isinstance(tasks, dict) or not all(isinstance(options, dict) for options in tasks.values()):
            raise ValueError(
                f"{folder / 'config.json'} says task_specific_params={tasks!r:.80}; expected an object for each task"
            )
        return cls(tasks)

    def with_task(self, task: str) -> "TaskPrompts":
        """Return a copy with a task selected.

        Raises:
            ValueError: the task is not described.
        """
        if task not in self.tasks:
            known = ", ".join(self.tasks) or "none"
            raise ValueError(f"this model's config.json describes no task {task!r}; it describes {known}")
        return replace(self, task=task)

    @property
    def prefix(self) -> str:
        """The prefix of every source, such as "summarize: "; "" without a task."""
        prefix = self.tasks[self.task].get("prefix") if self.task is not None else None
        return prefix if isinstance(prefix, str) else ""

    def generation_config(self, general: GenerationConfig) -> GenerationConfig:
        """Return the generation config of the task.

        Args:
            general: the checkpoint's config, for options that the task does not set.
        """
        if self.task is None:
            return general
        options = {key: value for key, value in self.tasks[self.task].items() if key != "prefix"}
        config_from_dict(options, general.beam_size, f"config.json's task {self.task}")  # refuses unsupported keys
        renamed = {"beam_size" if key == "num_beams" else key: value for key, value in options.items()}
        known = {key: value for key, value in renamed.items() if key in GenerationOptions.__annotations__}
        return general.updated(**cast(GenerationOptions, known))
