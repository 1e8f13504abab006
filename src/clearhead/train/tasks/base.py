"""Base class of training tasks: rows to batches, predictions, validation and saving."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from clearhead.data.records import Row
from clearhead.equations import masks
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import Files, RecipeBase, Section
from clearhead.train.tasks.predictions import Prediction

Example = Mapping[str, Any]
"""One example: for each field a sequence of ids or a number."""

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Batch:
    """Examples that are computed together.

    Args:
        tensors: tensors with one row per example.
        count: divisor of the loss over all rows: predicted tokens or examples.
        num_tokens: tokens over all rows, without padding.
        shared: tensors whose rows are compared with all others. Each process gets all their rows, its own first.
    """

    tensors: Mapping[str, Tensor]
    count: int
    num_tokens: int
    shared: frozenset[str] = frozenset()

    def shard(self, rank: int, world_size: int) -> "Batch | None":
        """Return every `world_size`-th row from row `rank` on, or None without such rows."""
        tensors = {name: tensor[rank::world_size] for name, tensor in self.tensors.items()}
        if not len(next(iter(tensors.values()))):
            return None
        for name in self.shared:
            others = [self.tensors[name][(rank + offset) % world_size :: world_size] for offset in range(1, world_size)]
            tensors[name] = torch.cat([tensors[name], *others])
        return replace(self, tensors=tensors)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return replace(self, tensors={name: tensor.to(device) for name, tensor in self.tensors.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


class Task(ABC, Generic[M]):
    """A training task with its model.

    The attributes `num_truncated` and `num_too_long` count texts that were truncated and rows that were skipped because
    a text that must not be truncated is too long; `untruncated_field` names that text.
    """

    fields: tuple[str, ...]
    """Fields of a row."""
    metrics: tuple[str, ...]
    """Metrics that `validate` returns, in addition to the loss."""
    model: M
    num_truncated: int
    num_too_long: int
    untruncated_field: str = "target"

    def __init__(self) -> None:
        self.num_truncated = self.num_too_long = 0

    def fields_of(self, files: Files) -> tuple[str, ...]:
        """Return the fields that a row of these files must have."""
        return self.fields

    @abstractmethod
    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        """Return the examples of each row: one, several windows, or none."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], generator: np.random.Generator, *, training: bool) -> Batch:
        """Return a batch of examples; if `training`, the generator augments them."""

    @abstractmethod
    def predict(self, model: nn.Module, batch: Batch, *, mask_padding: bool) -> Prediction:
        """Return the predictions of a model.

        Args:
            model: the task's model, or a teacher.
            batch: from `collate`.
            mask_padding: whether padding is masked.
        """

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Return the metrics of the current model on the held-out data."""

    def samples(self) -> list[str]:
        """Return lines that show predictions of the current model for a few held-out examples, if they say anything."""
        return []

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the model and its tokenizer into a folder."""

    @abstractmethod
    def cache_key(self) -> str:
        """Return a string that changes whenever the examples of the same rows would change."""

    @abstractmethod
    def load_teacher(self, name: str) -> nn.Module:
        """Load a trained model of the same task for distillation.

        Raises:
            ValueError: the teacher predicts other tokens, classes or vectors than this model.
        """


def _no_conflicts(recipe: RecipeBase) -> Iterator[tuple[str, str]]:
    yield from ()


@dataclass(frozen=True)
class TaskEntry:
    """A task in the registry.

    Args:
        name: value of the recipe's key `task`.
        objective: schema of the recipe's section `objective`.
        predicts: kind of predictions that `Task.predict` returns; a regularizer that does not support it refuses the
            recipe.
        create: recipe, folder of the run -> task with its initialized model.
        conflicts: yields recipe keys that the task does not allow, and why.
        generates: whether the model generates its targets, so that a teacher can write them (sequence-level
            distillation).
    """

    name: str
    objective: type[Section]
    predicts: type[Prediction]
    create: Callable[[Recipe, Path], Task[Any]]
    conflicts: Callable[[RecipeBase], Iterator[tuple[str, str]]] = _no_conflicts
    generates: bool = False


def pad(sequences: Iterable[Sequence[int] | np.ndarray], value: int) -> Int[Tensor, "B L"]:
    """Return sequences as rows of a matrix, padded on the right."""
    rows = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    # four times as fast as pad_sequence, which needs a tensor for each row
    padded = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded)


def keep_mask(lengths: Sequence[int]) -> Bool[Tensor, "B L"]:
    """Return a mask that is True at the real tokens of rows of these lengths."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def padding_mask(keep: Tensor, mask_padding: bool) -> masks.Mask | None:
    """Return the padding mask of a batch, or None if nothing has to be masked."""
    return masks.padding(keep) if mask_padding and not bool(keep.all()) else None
