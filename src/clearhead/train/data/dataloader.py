"""Batches in their order, from any point on: what training reads, and what a resumed run goes on reading."""

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
"""How long a stop waits for the batches of an update; a run with many of them would not end within its step."""

Collate = Callable[[Sequence[int] | np.ndarray, np.random.Generator], Batch]


@dataclass(frozen=True)
class MicroBatch:
    """One process's part of a batch.

    Args:
        batch: its rows; None where there are fewer rows than processes.
        tokens: of the whole batch, padding left out.
        total: what the loss of the whole update is divided by: the counts of all its batches, over all processes.
        number: which batch of the training this is, from 0 on.
        step: which update it belongs to, from 1 on.
        epoch: which pass over the data it was drawn in, from 0 on.
        places: its rows in the data, all processes', for messages.
    """

    batch: Batch | None
    tokens: int
    total: int
    number: int
    step: int
    epoch: int
    places: tuple[int, ...]

    def to(self, device: torch.device) -> "MicroBatch":
        """The part on a device."""
        batch = None if self.batch is None else self.batch.to(device)
        return replace(self, batch=batch)


class Loader:
    """The batches of a whole training, as a pure function of (seed, number of the batch).

    A position is all of its state: from there it goes on with the very same batches, also in the middle of an epoch.

    Args:
        batches: the plan of each epoch.
        collate: rows and draws to tensors.
        seed: of the draws.
        steps: updates; or
        epochs: passes over the data.
        accumulate: batches of one update, which may reach into the next epoch.
        rank, world: this process among all.
    """

    def __init__(
        self,
        batches: TokenBatchSampler,
        collate: Collate,
        *,
        seed: int,
        steps: int | None,
        epochs: int | None,
        accumulate: int = 1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._batches, self._collate, self._seed = batches, collate, seed
        self.accumulate, self._rank, self._world = accumulate, rank, world
        if steps is None:
            whole = sum(len(batches.epoch(number)) for number in range(epochs or 0))
            steps = -(-whole // accumulate)
        self.steps = steps
        self.position = 0
        self.stop_requested: Callable[[], bool] = lambda: False

    def __len__(self) -> int:
        return self.steps * self.accumulate

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a place."""
        self.position = state["position"]

    def __iter__(self) -> Iterator[MicroBatch]:
        if self.position >= len(self):
            return
        # an update that was begun is begun again: the gradients of its first batches are in no state
        self.position -= self.position % self.accumulate
        planned = self._planned()
        ahead: deque[MicroBatch] = deque()
        while self.position < len(self):
            if not ahead:
                ahead.extend(self._step(planned))
            part = ahead.popleft()
            # moved on before the batch is given away: a state that is saved while it is computed is the next one's
            self.position += 1
            yield part

    def _step(self, planned: Iterator[tuple[int, int, np.ndarray]]) -> list[MicroBatch]:
        """The batches of one update. Each process makes all of them, and so knows what the loss is divided by."""
        made = []
        start = time.monotonic()
        for _ in range(self.accumulate):
            number, epoch, rows = next(planned)
            draws = np.random.default_rng(np.random.SeedSequence([self._seed, epoch, number]))
            made.append((number, epoch, rows, self._collate(rows, draws)))
            if self.stop_requested() and time.monotonic() - start > _STOP_SECONDS:
                log.warning("stopped while batches are collected; --resume continues from the last checkpoint")
                raise SystemExit(130)
        total = sum(batch.count for *_, batch in made)
        return [
            MicroBatch(
                batch.share(self._rank, self._world),
                batch.tokens,
                total,
                number,
                number // self.accumulate + 1,
                epoch,
                tuple(int(row) for row in rows),
            )
            for number, epoch, rows, batch in made
        ]

    def _planned(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """(number, epoch, rows) of every batch from here on."""
        number = self.position
        epoch, before = 0, 0
        while True:
            plan = self._batches.epoch(epoch)
            for place in range(number - before, len(plan)):
                yield number, epoch, plan[place]
                number += 1
            epoch, before = epoch + 1, before + len(plan)
