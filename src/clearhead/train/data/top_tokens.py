"""The most probable tokens of teachers at each target position: computed once, before training, and kept on disk."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor, nn

from clearhead.equations.losses import ensemble_log_probs
from clearhead.io.atomic import error_path
from clearhead.io.folders import atomic_folder
from clearhead.io.json import read_json, write_json
from clearhead.io.safetensors import weights_hash
from clearhead.train.data.dataset import TokenizedDataset, map_array
from clearhead.train.data.sampler import sequential_batches
from clearhead.train.recipe.errors import named
from clearhead.train.tasks.base import Task
from clearhead.train.tasks.predictions import TokenPredictions, TopTokens

log = logging.getLogger(__name__)

_KEY, _IDS, _PROBS = "top-tokens.json", "ids.bin", "probs.bin"

_WINDOW = 4096
"""Rows whose tokens are in memory at once."""

_LOGITS = 2**24
"""Logits of one teacher in memory at once."""


class StoredTopTokens:
    """The top tokens in a folder that `build_top_tokens` wrote.

    Args:
        folder: the folder.
        dataset: the examples.

    Raises:
        ValueError: the folder contains none, or not those of these examples.
    """

    def __init__(self, folder: Path, dataset: TokenizedDataset) -> None:
        self.key = read_json(folder / _KEY)
        lengths = _target_lengths(dataset)
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        shape = (int(self._starts[-1]), self.key["num_tokens"])
        self._ids_PK: Int32[np.ndarray, "P K"] = map_array(folder / _IDS, "i", shape)
        self._probs_PK: Float32[np.ndarray, "P K"] = map_array(folder / _PROBS, "f", shape)

    def of_rows(self, rows: Sequence[int]) -> TopTokens:
        """Return the tokens at all target positions of these examples, one example after the other."""
        positions = np.concatenate([np.arange(self._starts[row], self._starts[row + 1]) for row in rows])
        ids_NK, probs_NK = self._ids_PK[positions], self._probs_PK[positions]
        return TopTokens(torch.from_numpy(ids_NK).long(), torch.from_numpy(probs_NK))


def build_top_tokens(
    folder: Path,
    task: Task[Any],
    teachers: Sequence[nn.Module],
    dataset: TokenizedDataset,
    *,
    num_tokens: int,
    batch_tokens: int,
    device: torch.device,
) -> StoredTopTokens:
    """Compute the teachers' most probable tokens at all target positions, or reuse those in the folder.

    The folder appears atomically. They are reused if the examples, the weights of the teachers and the number of tokens
    are the same.

    Args:
        folder: destination.
        task: a task whose examples have a field "target", each of whose tokens is predicted.
        teachers: models of the task, in evaluation mode. The probabilities are the averages of theirs.
        dataset: the examples.
        num_tokens: number of tokens per position; their probabilities are divided by their sum.
        batch_tokens: maximum number of tokens in a batch, including padding.
        device: device to compute on.

    Raises:
        ValueError: an example that is too long for a teacher.
        OSError: the disk is full.
    """
    key = {
        "data": dataset.fingerprint(),
        "teacher": "+".join(weights_hash(teacher.state_dict()) for teacher in teachers),
        "num_tokens": num_tokens,
    }
    if (stored := _reusable(folder, dataset, key)) is not None:
        return stored
    for teacher in teachers:
        teacher.to(device)
    done = 0
    with atomic_folder(folder) as part:
        with error_path(folder), (part / _IDS).open("wb") as ids, (part / _PROBS).open("wb") as probs:
            for window in _windows(task, teachers, dataset, num_tokens, batch_tokens):
                _append(window, ids, probs)
                done = min(len(dataset), done + _WINDOW)
                log.info("the teachers' most probable tokens of %s of %s examples", f"{done:,}", f"{len(dataset):,}")
        write_json(part / _KEY, key)
    for teacher in teachers:
        teacher.cpu()
    return StoredTopTokens(folder, dataset)


def _windows(
    task: Task[Any], teachers: Sequence[nn.Module], dataset: TokenizedDataset, num_tokens: int, batch_tokens: int
) -> Iterator[TopTokens]:
    """Yield the tokens of one window of examples after the other, in the order of the dataset."""
    for first in range(0, len(dataset), _WINDOW):
        lengths = _target_lengths(dataset)[first : first + _WINDOW]
        ends = np.cumsum(lengths, dtype=np.int64)
        window = TopTokens(
            torch.empty(int(ends[-1]), num_tokens, dtype=torch.int32), torch.empty(int(ends[-1]), num_tokens)
        )
        for rows in sequential_batches(dataset.lengths[first : first + _WINDOW], batch_tokens=batch_tokens):
            examples = [dataset[first + int(row)] for row in rows]
            ids_NK, probs_NK = _top_tokens(task, teachers, examples, num_tokens)
            positions = torch.from_numpy(
                np.concatenate([np.arange(ends[row] - lengths[row], ends[row]) for row in rows])
            )
            window.ids_NK[positions], window.probs_NK[positions] = ids_NK.cpu().int(), probs_NK.cpu()
        yield window


@torch.inference_mode()
def _top_tokens(
    task: Task[Any], teachers: Sequence[nn.Module], examples: Sequence[Any], num_tokens: int
) -> tuple[Int[Tensor, "N K"], Float[Tensor, "N K"]]:
    batch = task.collate(examples, np.random.default_rng(0), training=False).to(next(teachers[0].parameters()).device)
    sides: list[TokenPredictions] = []
    for teacher in teachers:
        with named("regularize.distillation.teacher"):
            side = task.predict(teacher, batch, mask_padding=True)
        assert isinstance(side, TokenPredictions)
        sides.append(side)
    ids, probs = [], []
    size = max(1, _LOGITS // len(sides[0].output.tokens.weight))
    for start in range(0, len(sides[0].hidden_ND), size):
        log_p_NV = ensemble_log_probs([side.output(side.hidden_ND[start : start + size]) for side in sides])
        top = log_p_NV.topk(num_tokens, dim=-1)
        ids.append(top.indices)
        probs.append(torch.softmax(top.values, dim=-1))  # so that their sum is 1
    return torch.cat(ids), torch.cat(probs)


def _append(window: TopTokens, ids: IO[bytes], probs: IO[bytes]) -> None:
    window.ids_NK.numpy().tofile(ids)
    window.probs_NK.numpy().tofile(probs)
    for file in (ids, probs):
        file.flush()


def _target_lengths(dataset: TokenizedDataset) -> Int32[np.ndarray, " N"]:
    return dataset.lengths[:, dataset.fields.index("target")]


def _reusable(folder: Path, dataset: TokenizedDataset, key: dict[str, Any]) -> StoredTopTokens | None:
    try:
        stored = StoredTopTokens(folder, dataset)
    except (OSError, ValueError, KeyError):
        return None
    return stored if stored.key == key else None
