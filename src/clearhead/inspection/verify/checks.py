"""What should change nothing is tried, and measured: what the checks of all models have in common."""

import contextlib
import copy
import math
import errno
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from clearhead.equations import attention
from clearhead.inspection.verify.certificate import PARITY, Check
from clearhead.layers import attention as attention_layers
from clearhead.runtime import prepacked_linear
from clearhead.runtime.compile import has_compiler
from clearhead.runtime.precision import inference_copy

CPU = torch.device("cpu")
ABSENT = "transformers is not installed"
_LENGTHS = (9, 4, 12, 1, 7, 160)
"""Of rows; one goes beyond ModernBERT's windows (64 to each side) and T5's last bucket of distances (128)."""
_LEFT, _RIGHT = 5, 7
"""Padding that is added."""

Rows = list[Tensor]
"""For each row of ids its vectors (L, D)."""


@dataclass(frozen=True)
class Measure:
    """How far what was found is from what was expected.

    Args:
        measured: the error in words.
        bound: what it may be at most.
        error: of what was found and what was expected.
        name: what is added to the name of a check that has several measures.
    """

    measured: str
    bound: float
    error: Callable[[Any, Any], float]
    name: str = ""


def _of_tokens(found: Rows, expected: Rows) -> float:
    # of tensors, whose maximum is no number if one of them is none
    distances = [
        ((one - other).norm(dim=-1) / other.norm(dim=-1).clamp_min(1e-12)).max()
        for one, other in zip(found, expected, strict=True)
    ]
    return float(torch.stack(distances).max())


def means(rows: Rows) -> Rows:
    """The mean of each row's vectors, as a row of its own."""
    return [row.float().mean(dim=0, keepdim=True) for row in rows]


def from_cosines(found: Rows, expected: Rows) -> float:
    """1 − the smallest cosine of two vectors."""
    cosines = [
        nn.functional.cosine_similarity(one.float(), other, dim=-1).min()
        for one, other in zip(found, expected, strict=True)
    ]
    return 1 - float(torch.stack(cosines).min())


def _of_largest(found: Rows, expected: Rows) -> float:
    # of the largest of all texts: one that happens to be near zero is as good as any
    distances = torch.stack([(one - other).norm() for one, other in zip(found, expected, strict=True)])
    return float(distances.max() / torch.stack([other.norm() for other in expected]).max().clamp_min(1e-12))


def _differ(found: Sequence[Any], expected: Sequence[Any]) -> float:
    return float(sum(one != other for one, other in zip(found, expected, strict=True)))


def _lost(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return float(sum(name not in found or not torch.equal(found[name], held) for name, held in expected.items()))


LEAST_COSINE = 0.9995
TOKENS = Measure("largest distance of a token's vector, of its norm", 1e-5, _of_tokens)
MEANS = Measure(
    "largest distance of a text's mean vector, of its norm",
    1e-6,
    lambda found, expected: _of_tokens(means(found), means(expected)),
    ", mean",
)
LOGITS = Measure("largest distance of a text's logits, of the largest logits' norm", 1e-5, _of_largest)
OUTPUTS = Measure("outputs that differ", 0.0, _differ)
TENSORS = Measure("tensors that differ", 0.0, _lost)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_check(name: str, compute: Callable[[], tuple[Any, Any]], *measures: Measure) -> list[Check]:
    """A check, a line for each of its measures.

    Args:
        name: what is tried.
        compute: gives what is found, and what is expected; if it raises, the check fails with the error's text.
        measures: how the two are compared.

    Raises:
        OSError: the disk is full, which is no fault of the model.
    """
    try:
        found, expected = compute()
        return [_judged(name, measure, measure.error(found, expected)) for measure in measures]
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise
        reason = next(iter(str(error).splitlines()), "")
        note = f"{type(error).__name__}: {reason}"
        return [Check(name + one.name, one.measured, None, one.bound, False, note) for one in measures]


def skip_check(name: str, measure: Measure, why: str) -> list[Check]:
    """A check that could not be tried."""
    return [Check(name, measure.measured, None, measure.bound, True, why)]


class Checks:
    """What both kinds of models have in common: `states` gives, for each row of ids, vectors to compare.

    Args:
        folder: the checkpoint's.
        model: the model in it, in float32.
    """

    low: Measure
    """Of bfloat16: of what a person uses."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder, self.model = folder, model
        self.whole = model  # what is saved: with a head, where there is one
        self.rows: list[Tensor] = []

    def states(
        self, model: Any, rows: Sequence[Tensor], left: int = 0, right: int = 0, *, packed: bool = False
    ) -> Rows:
        """The vectors of rows of ids.

        Args:
            model: this model, or a copy of it that computes otherwise.
            rows: ids, without padding.
            left, right: so much more padding than they need together.
            packed: one row after another in one, in place of padding.
        """
        raise NotImplementedError

    def foreign(self) -> Rows:
        """The same by transformers."""
        raise NotImplementedError

    def saved(self, folder: Path) -> nn.Module:
        """The model that is opened again after it was saved to a folder."""
        raise NotImplementedError

    @torch.inference_mode()
    def all(self, there: bool) -> list[Check]:
        """Every check.

        Args:
            there: whether transformers is.
        """
        return [
            *self.near("padding on the right", lambda: self.states(self.model, self.rows, right=_RIGHT), TOKENS, MEANS),
            *self.near("padding on the left", lambda: self.states(self.model, self.rows, left=_LEFT), TOKENS, MEANS),
            *self.alone(),
            *self.near("another order of the batch", self._reversed, TOKENS, MEANS),
            *self.near("packed = padded", lambda: self.states(self.model, self.rows, packed=True), TOKENS),
            *self.near("fused = explicit attention", self._explicit, TOKENS),
            *self._prepacked(),
            *self._compiled(),
            *self.near(
                "bfloat16", lambda: self.states(inference_copy(self.model, torch.bfloat16, CPU), self.rows), self.low
            ),
            *self.own(),
            *run_check("saved and opened again", self._round_trip, TENSORS),
            *(self.near(PARITY, self.foreign, TOKENS) if there else skip_check(PARITY, TOKENS, ABSENT)),
        ]

    def own(self) -> list[Check]:
        """Checks of this kind alone."""
        return []

    def alone(self) -> list[Check]:
        """Each text in a batch of its own."""
        return self.near("each text alone", lambda: [self.states(self.model, [row])[0] for row in self.rows], TOKENS)

    def near(self, name: str, compute: Callable[[], Rows], *measures: Measure) -> list[Check]:
        """A check that vectors stay where they are."""
        return run_check(name, lambda: (compute(), self._plain), *measures)

    @cached_property
    def _plain(self) -> Rows:
        return self.states(self.model, self.rows)

    def _reversed(self) -> Rows:
        return self.states(self.model, self.rows[::-1])[::-1]

    def _explicit(self) -> Rows:
        with explicit_attention():
            return self.states(self.model, self.rows)

    def _prepacked(self) -> list[Check]:
        name = "prepacked = plain weights"
        if not prepacked_linear.is_supported(torch.float32):
            return skip_check(name, TOKENS, "this torch has no such operators")
        return self.near(name, lambda: self.states(inference_copy(self.model, torch.float32, CPU), self.rows), TOKENS)

    def _compiled(self) -> list[Check]:
        name = "compiled = eager"
        if not has_compiler():
            return skip_check(name, TOKENS, "there is no C++ compiler")

        def compiled() -> Rows:
            model = copy.deepcopy(self.model)
            model.compile(dynamic=True)
            return self.states(model, self.rows)

        return self.near(name, compiled, TOKENS)

    def _round_trip(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with tempfile.TemporaryDirectory() as place:
            return self.saved(Path(place)).state_dict(), self.whole.state_dict()


@contextlib.contextmanager
def explicit_attention() -> Iterator[None]:
    """Attention by the explicit equation, in place of the fused kernels."""

    def explicit(
        q: Tensor, k: Tensor, v: Tensor, mask: Any = None, *, drop_prob: float = 0.0, scale: Any = None
    ) -> Any:
        return attention.scaled_dot_product(q, k, v, mask, scale=scale)[0]

    with mock.patch.object(attention_layers, "fused_scaled_dot_product", explicit):
        yield


def random_ids(vocabulary: int, special: set[int], longest: int | None, length: int | None = None) -> list[Tensor]:
    """Rows of ids of several lengths, or of one, without special ones; there is room for the padding."""
    words = torch.tensor([number for number in range(vocabulary) if number not in special])
    room = max(_LENGTHS) if longest is None else max(1, longest - max(_LEFT, _RIGHT))
    lengths = [min(length or size, room) for size in _LENGTHS]
    return [words[torch.randint(len(words), (size,))] for size in lengths]


def padded(rows: Sequence[Tensor], pad: int, left: int = 0, right: int = 0) -> tuple[Tensor, Tensor]:
    """Rows in one tensor of ids, and which of these are real."""
    longest = max(len(row) for row in rows) + left + right
    ids, keep = torch.full((len(rows), longest), pad), torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        start = longest - right - len(row) if left else 0
        ids[number, start : start + len(row)], keep[number, start : start + len(row)] = row, True
    return ids, keep


def _judged(name: str, measure: Measure, error: float) -> Check:
    name += measure.name
    if not math.isfinite(error):
        return Check(name, measure.measured, None, measure.bound, False, "the result is not a number")
    return Check(name, measure.measured, error, measure.bound, error <= measure.bound)
