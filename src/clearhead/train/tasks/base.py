"""What a task is to training: how rows become batches, what the model guesses, and how good the guesses are."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.data.records import Row
from clearhead.equations import masks
from clearhead.layers.embedding import OutputProjection
from clearhead.train.recipe.recipe import Files

Example = Mapping[str, Any]
"""An example: for each field a sequence of ids or a number."""


M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Batch:
    """Examples that are computed together.

    Args:
        tensors: each with a row for each example.
        count: what the loss is divided by, over all rows: tokens to guess, or examples.
        tokens: that are read or guessed, padding left out, over all rows.
        compared: tensors whose rows are compared with all others: each process has all of them, its own first.
    """

    tensors: Mapping[str, Tensor]
    count: int
    tokens: int
    compared: frozenset[str] = frozenset()

    def share(self, rank: int, world: int) -> "Batch | None":
        """What one of several processes computes: every `world`-th row; None where there is no row for it."""
        tensors = {name: tensor[rank::world] for name, tensor in self.tensors.items()}
        if not len(next(iter(tensors.values()))):
            return None
        for name in self.compared:
            others = [self.tensors[name][(rank + further) % world :: world] for further in range(1, world)]
            tensors[name] = torch.cat([tensors[name], *others])
        return replace(self, tensors=tensors)

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        return replace(self, tensors={name: tensor.to(device) for name, tensor in self.tensors.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


@dataclass(frozen=True)
class TokenPredictions:
    """Guesses of tokens, before the vocabulary's matrix: the logits of all positions are never held at once.

    Args:
        hidden_ND: hidden states at the positions to guess.
        output: the map to the logits.
        targets_N: the right ids.
    """

    hidden_ND: Float[Tensor, "N D"]
    output: OutputProjection
    targets_N: Int[Tensor, " N"]


@dataclass(frozen=True)
class ClassPredictions:
    """Guesses among few classes.

    Args:
        logits_NC: their logits.
        targets_N: the right classes.
    """

    logits_NC: Float[Tensor, "N C"]
    targets_N: Int[Tensor, " N"]


@dataclass(frozen=True)
class EmbeddingPredictions:
    """Vectors of texts, with a loss of their own.

    Args:
        loss: summed over the examples.
        vectors_ND: one a text.
    """

    loss: Float[Tensor, ""]
    vectors_ND: Float[Tensor, "N D"]


Prediction = TokenPredictions | ClassPredictions | EmbeddingPredictions


class Task(ABC, Generic[M]):
    """One kind of training.

    A task holds its model, its tokenizer and the family of checkpoints that it writes.
    """

    fields: tuple[str, ...]
    """What a row must have."""
    scores: tuple[str, ...]
    """What `validate` measures, beside the loss."""
    model: M
    cut: int
    """How many texts have been cut so far."""
    longer: int
    """How many rows have been left out so far for a text that is too long and cannot be cut."""
    uncut: str = "target"
    """Which text that is."""

    def __init__(self) -> None:
        self.cut = self.longer = 0

    def fields_of(self, source: Files) -> tuple[str, ...]:
        """What a row of these files must have."""
        return self.fields

    @abstractmethod
    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        """For each row its examples: one, or several windows, or none."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], draws: np.random.Generator, *, learning: bool) -> Batch:
        """Examples as tensors, augmented by the draws where they are for learning."""

    @abstractmethod
    def guess(self, model: nn.Module, batch: Batch, *, masked: bool) -> Prediction:
        """What a model makes of a batch.

        Args:
            model: the task's model, or a teacher.
            batch: from `collate`.
            masked: whether padding is masked.
        """

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """The scores of the model as it is now, by name, on the held-out data."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the model's folder."""

    @abstractmethod
    def key(self) -> str:
        """What the examples depend on beside the rows: tokenizer and lengths."""

    @abstractmethod
    def teacher(self, name: str) -> nn.Module:
        """A trained model of the same task, to learn from.

        Raises:
            ValueError: one that guesses other things than this model.
        """


HIGHER_IS_BETTER = {"loss": False, "perplexity": False}
"""Which way a measure gets better, where it is not upwards."""


def better(name: str, new: float, old: float, min_delta: float = 0.0) -> bool:
    """Whether a measure has got better by more than min_delta. Any number is better than none (NaN)."""
    if math.isnan(old):
        return not math.isnan(new)
    return new > old + min_delta if HIGHER_IS_BETTER.get(name, True) else new < old - min_delta


def padded(sequences: Iterable[Sequence[int] | np.ndarray], fill: int) -> Int[Tensor, "B L"]:
    """Sequences as the rows of a matrix, filled up on the right."""
    rows = [torch.as_tensor(np.asarray(sequence, dtype=np.int64)) for sequence in sequences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)


def lengths_mask(lengths: Sequence[int]) -> Bool[Tensor, "B L"]:
    """True at the real tokens of rows of these lengths."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def padding_mask(keep: Tensor, masked: bool) -> masks.Mask | None:
    """The padding mask of a batch, or None where attention shall see the padding, or where there is none."""
    return masks.padding(keep) if masked and not bool(keep.all()) else None
