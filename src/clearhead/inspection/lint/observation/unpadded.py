"""Run one text of a batch again without its padding."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.equations import masks
from clearhead.inspection.lint.observation.observe import Observation
from clearhead.inspection.lint.observation.run import ModelRun, run_model

_TOLERANCE = 1e-6
"""Largest distance of two equal states, relative to their norm: only the order of sums differs."""


def states_change_without_padding(observation: Observation) -> bool:
    """Return whether the states of a text differ without its padding; True if this cannot be tested.

    Some models, such as MobileBERT, add zeros after the text, and the embedding of their padding is zero too. The
    gradient by the padding is then not zero although padding changes nothing.
    """
    assert observation.run is not None
    assert observation.run.memory is not None
    states = observation.run.memory
    row, unpadded = run_without_padding(observation)
    if unpadded is None or unpadded.memory is None or not is_single_or_double(states):
        return True
    padded, alone = states[row, : unpadded.memory.shape[1]], unpadded.memory[0]
    return padded.shape != alone.shape or bool((padded - alone).norm() > _TOLERANCE * padded.norm())


def run_without_padding(observation: Observation) -> tuple[int, ModelRun | None]:
    """Run the text with the most padding on its right alone, without that padding.

    Returns:
        The row of the text, and its run; None if no text has such padding, or the model does not accept it.
    """
    assert observation.model is not None
    assert observation.batch is not None
    real_BM = observation.real_BM
    texts, longest = real_BM.shape
    lengths = real_BM.sum(dim=1)
    padded = (lengths > 0) & (lengths < longest) & real_BM.long().diff(dim=1).le(0).all(dim=1)
    row = int(lengths.masked_fill(~padded, longest).argmin())
    if not bool(padded.any()):
        return row, None
    length = int(lengths[row])
    batch: Mapping[str, Any] = {
        name: _cut(value, row, length, texts, longest) for name, value in observation.batch.items()
    }
    try:
        return row, run_model(observation.model, batch)
    except Exception:  # not every model accepts another length
        return row, None


def is_single_or_double(x: Tensor) -> bool:
    """Return whether a tensor is float32 or float64, whose results are precise enough to compare."""
    return x.dtype in (torch.float32, torch.float64)


def _cut(value: object, row: int, length: int, texts: int, longest: int) -> object:
    """Return the part of a batch's value that belongs to one text, without its padding."""

    def cut(tensor: Tensor, dims: range) -> Tensor:
        for dim in dims:
            # with equal numbers of texts and tokens, dimension 0 is the texts; a wrong guess raises in the run
            if tensor.shape[dim] == texts and (texts != longest or dim == 0):
                tensor = tensor.narrow(dim, row, 1)
            elif tensor.shape[dim] == longest:
                tensor = tensor.narrow(dim, 0, length)
        return tensor

    if isinstance(value, masks.Mask) and value.lengths is None:
        keep_BM, bias = (part if part is None else cut(part, range(part.ndim)) for part in (value.keep_BM, value.bias))
        return replace(value, length=length, keep_BM=keep_BM, bias=bias)
    if not isinstance(value, Tensor):
        return value
    vectors = value.is_floating_point() and value.ndim == 3  # their width is not a length
    return cut(value, range(2 if vectors else value.ndim))
