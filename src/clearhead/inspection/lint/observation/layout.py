"""Find the batch dimension of a model's tensors by testing the dependence of outputs on inputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_PROBES = 24
"""Positions of a result that are tested to find its layout."""


@dataclass(frozen=True)
class BatchFirst:
    """Whether the batch is the first dimension of each tensor."""

    source: bool = True
    target: bool = True
    memory: bool = True
    result: bool = True


def as_leaf(x: Tensor, batch_first: bool) -> Tensor:
    """Return a copy with the batch first that collects gradients."""
    return to_batch_first(x.detach(), batch_first).clone().requires_grad_()


def to_batch_first(x: Tensor, batch_first: bool) -> Tensor:
    """Swap the first two dimensions of vectors unless the batch is first; the same call converts back."""
    return x if batch_first or x.ndim < 3 else x.transpose(0, 1)


def layout_of(source: Tensor, target: Tensor | None, memory: Tensor | None, result: Tensor) -> BatchFirst:
    """Return which tensors of one run have the batch first.

    Args:
        source, target: inputs that collect gradients.
        memory, result: outputs that depend on them.
    """
    source_votes = _batch_first_votes(source, result)
    target_votes = source_votes if target is None else _batch_first_votes(target, result)
    source_first, target_first = (source_votes or target_votes) > 0, (target_votes or source_votes) > 0
    last, last_first = (source, source_first) if target is None else (target, target_first)
    memory_first = memory is not None and _shares_first_index(memory, source, source_first)
    return BatchFirst(source_first, target_first, memory_first, _shares_first_index(result, last, last_first))


def _batch_first_votes(inputs: Tensor, result: Tensor) -> int:
    """Count the evidence that the first index is the text; negative if it is the position.

    Each vector of a result depends on the tokens of one text.
    """
    votes = 0
    for index, depends in _dependences(inputs, result):
        rows, columns = (depends.any(dim=dim).nonzero().flatten().tolist() for dim in (1, 0))
        votes += (len(rows) == 1) - (len(columns) == 1)
        if len(index) == 1:  # one vector for each text
            votes += (rows == index) - (columns == index)
    if not votes and result.ndim < 3:
        votes = (len(result) == inputs.shape[0]) - (len(result) == inputs.shape[1])
    return votes


def _shares_first_index(states: Tensor, inputs: Tensor, inputs_batch_first: bool) -> bool:
    """Return whether the first index of the states is the text of the inputs that they depend on."""
    votes = 0
    for index, depends in _dependences(inputs, states):
        texts = depends.any(dim=1 if inputs_batch_first else 0).nonzero().flatten().tolist()
        if len(texts) == 1 and len(index) > 1:
            votes += (index[0] == texts[0]) - (index[1] == texts[0])
    return votes > 0


def _dependences(inputs: Tensor, states: Tensor) -> Iterator[tuple[list[int], Tensor]]:
    """Yield indices of some states, and which input vectors each state depends on."""
    indices = torch.ones(states.shape[: min(2, max(1, states.ndim - 1))]).nonzero().tolist()
    for index in indices[:: -(-len(indices) // _MAX_PROBES)]:
        vector = states[tuple(index)]
        direction = torch.randn(vector.shape, generator=torch.Generator().manual_seed(0)).to(vector)
        (gradient,) = torch.autograd.grad((vector * direction).sum(), inputs, retain_graph=True, allow_unused=True)
        if gradient is not None:
            yield index, (gradient != 0).any(dim=-1).cpu()
