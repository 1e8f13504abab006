"""Training batches in a reproducible order that can be resumed at any batch."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from clearhead.train.data.sampler import TokenBatchSampler
from clearhead.train.tasks.base import Batch

log = logging.getLogger(__name__)

_STOP_SECONDS = 10.0
"""Seconds that a stop waits for the batches of an update, because collating many of them takes long."""

Collate = Callable[[Sequence[int] | np.ndarray, np.random.Generator, float], Batch]


@dataclass(frozen=True)
class MicroBatch:
    """One process's part of a batch.

    Args:
        batch: the process's rows; None if there are fewer rows than processes.
        num_tokens: tokens of the whole batch without padding.
        loss_divisor: divisor of the loss: the counts of all batches of the update, over all processes.
        index: number of the batch in the training, from 0.
        step: number of the update, from 1.
        epoch: pass over the data, from 0.
        rows: rows of all processes in the dataset.
    """

    batch: Batch | None
    num_tokens: int
    loss_divisor: int
    index: int
    step: int
    epoch: int
    rows: tuple[int, ...]

    def to(self, device: torch.device) -> "MicroBatch":
        """Return the micro-batch on a device."""
        batch = None if self.batch is None else self.batch.to(device)
        return replace(self, batch=batch)


class TrainingDataLoader:
    """The batches of a whole training run, as a pure function of the seed and the batch's number.

    The position is the only state. A loader that resumes there yields the same batches, also within an epoch.

    Args:
        sampler: selects the rows of each batch.
        collate: rows, random generator, finished share of the training -> batch.
        seed: seed of the random generators.
        steps: number of updates; or
        epochs: number of passes over the data.
        accumulation_steps: batches per update; an update may continue in the next epoch.
        rank, world_size: this process among all.
    """

    def __init__(
        self,
        sampler: TokenBatchSampler,
        collate: Collate,
        *,
        seed: int,
        steps: int | None,
        epochs: int | None,
        accumulation_steps: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._sampler, self._collate, self._seed = sampler, collate, seed
        self.accumulation_steps, self._rank, self._world_size = accumulation_steps, rank, world_size
        if steps is None:
            num_batches = sum(len(sampler.epoch(epoch)) for epoch in range(epochs or 0))
            steps = -(-num_batches // accumulation_steps)
        self.total_steps = steps
        self.position = 0
        self.stop_requested: Callable[[], bool] = lambda: False

    def __len__(self) -> int:
        return self.total_steps * self.accumulation_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position."""
        self.position = state["position"]

    def __iter__(self) -> Iterator[MicroBatch]:
        if self.position >= len(self):
            return
        # an interrupted update starts again, because no state contains the gradients of its first batches
        self.position -= self.position % self.accumulation_steps
        planned = self._planned_batches()
        queue: deque[MicroBatch] = deque()
        while self.position < len(self):
            if not queue:
                queue.extend(self._update(planned))
            micro_batch = queue.popleft()
            # incremented before the batch is computed, so that a state saved meanwhile continues with the next batch
            self.position += 1
            yield micro_batch

    def _update(self, planned: Iterator[tuple[int, int, np.ndarray]]) -> list[MicroBatch]:
        """Return the batches of one update. Each process collates all of them, because it needs the loss divisor."""
        collated = []
        start = time.monotonic()
        for _ in range(self.accumulation_steps):
            index, epoch, rows = next(planned)
            generator = np.random.default_rng(np.random.SeedSequence([self._seed, epoch, index]))
            collated.append((index, epoch, rows, self._collate(rows, generator, index / len(self))))
            if self.stop_requested() and time.monotonic() - start > _STOP_SECONDS:
                log.warning("stopped while batches are collected; --resume continues from the last checkpoint")
                raise SystemExit(130)
        loss_divisor = sum(batch.count for *_, batch in collated)
        return [
            MicroBatch(
                batch=batch.shard(self._rank, self._world_size),
                num_tokens=batch.num_tokens,
                loss_divisor=loss_divisor,
                index=index,
                step=index // self.accumulation_steps + 1,
                epoch=epoch,
                rows=tuple(int(row) for row in rows),
            )
            for index, epoch, rows, batch in collated
        ]

    def _planned_batches(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (index, epoch, rows) of every batch from the current position on."""
        index = self.position
        epoch, epoch_start = 0, 0
        while True:
            batches = self._sampler.epoch(epoch)
            for rows in batches[index - epoch_start :]:
                yield index, epoch, rows
                index += 1
            epoch, epoch_start = epoch + 1, epoch_start + len(batches)
