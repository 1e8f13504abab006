"""Which way round a model's tensors are, seen from outside: of which the batch is the first dimension."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_PROBES = 24
"""Places of a result that are looked at, to see which way round it is."""


@dataclass(frozen=True)
class BatchFirst:
    """Of which tensors the batch is the first dimension: of all, or not of those of torch.nn's modules."""

    source: bool = True
    target: bool = True
    memory: bool = True
    result: bool = True


def as_leaf(x: Tensor, first: bool) -> Tensor:
    """The same numbers with the batch first, by which gradients can be asked for."""
    return turned(x.detach(), first).clone().requires_grad_()


def turned(x: Tensor, first: bool) -> Tensor:
    """The batch first, or as the model wants it."""
    return x if first or x.ndim < 3 else x.transpose(0, 1)


def layout_of(source: Tensor, target: Tensor | None, memory: Tensor | None, result: Tensor) -> BatchFirst:
    """Of which tensors of one run the batch is the first dimension, by what depends on what.

    Args:
        source, target: leaves that went in.
        memory, result: what came of them.
    """
    votes = _texts_are_rows(source, result)
    other = votes if target is None else _texts_are_rows(target, result)
    of_source, of_target = (votes or other) > 0, (other or votes) > 0
    last, of_last = (source, of_source) if target is None else (target, of_target)
    of_memory = memory is not None and _same_way(memory, source, of_source)
    return BatchFirst(of_source, of_target, of_memory, _same_way(result, last, of_last))


def _texts_are_rows(inputs: Tensor, result: Tensor) -> int:
    """How much speaks for it that a text's tokens share the first index, or, where it is negative, the second: each
    part of a result depends on those of one text."""
    votes = 0
    for place, touched in _dependent(inputs, result):
        rows, columns = (touched.any(dim=dim).nonzero().flatten().tolist() for dim in (1, 0))
        votes += (len(rows) == 1) - (len(columns) == 1)
        if len(place) == 1:  # one vector a text, whose place is the text's
            votes += (rows == place) - (columns == place)
    if not votes and result.ndim < 3:
        votes = (len(result) == inputs.shape[0]) - (len(result) == inputs.shape[1])
    return votes


def _same_way(states: Tensor, inputs: Tensor, texts_are_rows: bool) -> bool:
    """Whether the first index of the states is that of the text on which they depend."""
    votes = 0
    for place, touched in _dependent(inputs, states):
        texts = touched.any(dim=1 if texts_are_rows else 0).nonzero().flatten().tolist()
        if len(texts) == 1 and len(place) > 1:
            votes += (place[0] == texts[0]) - (place[1] == texts[0])
    return votes > 0


def _dependent(inputs: Tensor, states: Tensor) -> Iterator[tuple[list[int], Tensor]]:
    """Some places of the states, and the places (its first two dimensions) of what went in on which each depends."""
    places = torch.ones(states.shape[: min(2, max(1, states.ndim - 1))]).nonzero().tolist()
    for place in places[:: -(-len(places) // _PROBES)]:
        part = states[tuple(place)]
        direction = torch.randn(part.shape, generator=torch.Generator().manual_seed(0)).to(part)
        (gradient,) = torch.autograd.grad((part * direction).sum(), inputs, retain_graph=True, allow_unused=True)
        if gradient is not None:
            yield place, (gradient != 0).any(dim=-1).cpu()
