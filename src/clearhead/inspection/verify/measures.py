"""Error measures of the checks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LEAST_COSINE = 0.9995
"""Smallest allowed cosine of a bfloat16 vector and its float32 vector."""

LEAST_INT8_COSINE = 0.99
"""The same for the outputs of a text in 8 bits. The weights were calibrated on texts, and the checks use random ids."""

Rows = list[Tensor]
"""Vectors (L, D) of each row of ids."""


@dataclass(frozen=True)
class Measure:
    """Error of a result against the expected result.

    Args:
        measured: definition of the error in words.
        bound: largest allowed error.
        error: computes the error from the result and the expected result.
        name: suffix of the check's name, for checks with several measures.
    """

    measured: str
    bound: float
    error: Callable[[Any, Any], float]
    name: str = ""


def means(rows: Rows) -> Rows:
    """Return the mean vector of each row as a row of length 1."""
    return [row.float().mean(dim=0, keepdim=True) for row in rows]


def cosine_error(result: Rows, expected: Rows) -> float:
    """Return 1 − the smallest cosine of a vector and the expected vector."""
    cosines = [
        nn.functional.cosine_similarity(row.float(), other, dim=-1).min()
        for row, other in zip(result, expected, strict=True)
    ]
    return 1 - float(torch.stack(cosines).min())


def _centered(rows: Rows) -> Rows:
    """Return the outputs of each row as one vector, less their mean: a constant changes no probability."""
    return [(row.float() - row.float().mean(dim=-1, keepdim=True)).flatten()[None] for row in rows]


def _token_error(result: Rows, expected: Rows) -> float:
    # the maximum of tensors, because Python's max ignores NaN
    errors = [
        ((row - other).norm(dim=-1) / other.norm(dim=-1).clamp_min(1e-12)).max()
        for row, other in zip(result, expected, strict=True)
    ]
    return float(torch.stack(errors).max())


def _logit_error(result: Rows, expected: Rows) -> float:
    # relative to the largest logits of all texts, because those of one text may be near zero
    distances = torch.stack([(row - other).norm() for row, other in zip(result, expected, strict=True)])
    return float(distances.max() / torch.stack([other.norm() for other in expected]).max().clamp_min(1e-12))


def _count_different(result: Sequence[Any], expected: Sequence[Any]) -> float:
    return float(sum(output != other for output, other in zip(result, expected, strict=True)))


def _count_changed(result: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return float(sum(name not in result or not torch.equal(result[name], value) for name, value in expected.items()))


TOKENS = Measure("largest relative error of a token vector", 1e-5, _token_error)
MEANS = Measure(
    "largest relative error of a mean vector",
    1e-6,
    lambda result, expected: _token_error(means(result), means(expected)),
    ", mean",
)
LOGITS = Measure("largest error of a text's logits, relative to the largest logits", 1e-5, _logit_error)
OUTPUTS = Measure("number of different outputs", 0.0, _count_different)
INT8_OUTPUTS = Measure(
    "1 − smallest cosine of a text's outputs",
    1 - LEAST_INT8_COSINE,
    lambda result, expected: cosine_error(_centered(result), _centered(expected)),
)
TENSORS = Measure("number of different tensors", 0.0, _count_changed)
