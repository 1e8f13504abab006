"""Padding in the one vector of a text: in what is pooled, or in how many tokens are counted."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.inspection.lint.findings import Finding
from clearhead.inspection.lint.observation import Observed, observe

_SAME = 1e-3
"""Two vectors of one text are the same that differ by less than so much of the longest one's length in the batch; in
float32 a hundred times less is usual."""

_EQUAL = 1e-6
"""Two states are the same to so much of their length where what differs is the order of sums."""


def leaks(seen: Observed, real: Tensor) -> list[Finding]:
    """Whether padding has a part in the one vector of a text. The first token's beside states, which many models give
    and few take, is let be."""
    pooled, inputs, beside = seen.pooled, seen.source, seen.beside
    if pooled is None or inputs is None:
        return []
    direction = torch.randn(pooled.shape[-1], generator=torch.Generator().manual_seed(0)).to(pooled)
    (gradient,) = torch.autograd.grad((pooled * direction).sum(), inputs, retain_graph=True, allow_unused=True)
    if gradient is None:
        raise ValueError("the model's output depends on nothing that went in")
    leaks_BM = not_zero(gradient) & ~real
    if not leaks_BM[:, 1:].any() if beside else not leaks_BM.any():
        return []
    row, place = leaks_BM.nonzero()[0].tolist()
    why, mend = (
        "Attention leaves the padding out, but the mean or maximum over the tokens takes it in.",
        "Pool with the mask: sum over real tokens, divided by their number.",
    )
    if seen.memory is None:
        why, mend = (
            "Attention or pooling takes the padding in: what the encoder gives has more places than the text.",
            "Pass attention a padding mask for all places, and pool with it.",
        )
    elif bool((~real[:, 1:]).any()) and not bool(leaks_BM[:, 1:].any()):
        why, mend = (
            "The vector is that of the first place, and with padding on the left no real token stands there.",
            "Take the first real token's, or pad on the right.",
        )
    return [Finding("padding leaks into the pooled vector", f"pooling, row {row}, position {place}", why, mend)]


def counts(model: nn.Module, batch: Mapping[str, Any], pooled: Tensor, real: Tensor) -> list[Finding]:
    """Whether a text has another vector without its padding: counted, or as zeros below a maximum, padding has a part
    that no gradient tells of."""
    row, other = _unpadded(model, batch, real)
    if other is None or other.pooled is None or other.pooled.shape != pooled[:1].shape or not _exact(pooled):
        return []
    if (other.pooled[0] - pooled[row]).norm() <= _SAME * pooled.norm(dim=1).max():
        return []
    return [
        Finding(
            "padding leaks into the pooled vector",
            f"pooling, row {row}",
            "Without its padding this text has another vector: padding is counted, or its zeros are the maximum.",
            "Divide by the number of real tokens; fill padding with -inf before a maximum.",
        )
    ]


def changes_nothing(model: nn.Module, batch: Mapping[str, Any], states: Tensor, real: Tensor) -> bool:
    """Whether a text's states are the same without its padding, though gradients reach it: some models, such as
    MobileBERT, put zeros beside a text's end, and the padding's embedding is zero, too."""
    row, other = _unpadded(model, batch, real)
    if other is None or other.memory is None or not _exact(states):
        return False
    own = states[row, : other.memory.shape[1]]
    return own.shape == other.memory[0].shape and bool((own - other.memory[0]).norm() <= _EQUAL * own.norm())


def _exact(x: Tensor) -> bool:
    return x.dtype in (torch.float32, torch.float64)


def _unpadded(model: nn.Module, batch: Mapping[str, Any], real: Tensor) -> tuple[int, Observed | None]:
    """The text with the most padding on its right, and what is observed of it alone and without; None where there is
    none, or where the model does not take it."""
    texts, longest = real.shape
    lengths = real.sum(dim=1)
    padded = (lengths > 0) & (lengths < longest) & real.long().diff(dim=1).le(0).all(dim=1)
    row = int(lengths.masked_fill(~padded, longest).argmin())
    if not bool(padded.any()):
        return row, None
    alone = {name: _cut(value, row, int(lengths[row]), texts, longest) for name, value in batch.items()}
    try:
        return row, observe(model, alone)
    except Exception:  # not every model takes another length
        return row, None


def _cut(value: object, row: int, length: int, texts: int, longest: int) -> object:
    """One text of what a batch holds, without its padding."""

    def cut(tensor: Tensor, dims: range) -> Tensor:
        for dim in dims:
            # with as many texts as tokens, texts come first; what does not fit then raises, and nothing is said
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
    vectors = value.is_floating_point() and value.ndim == 3  # whose width may be as many
    return cut(value, range(2 if vectors else value.ndim))


def not_zero(gradient: Tensor) -> Tensor:
    """Which vectors have a part in what the gradient is of. A weight that is masked is 0, and so is all after it."""
    return (gradient.detach() != 0).any(dim=-1).cpu()
