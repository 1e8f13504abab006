"""Checks of all model types: padding, batching, kernels, precision and saving must not change the results."""

import copy
import errno
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.inspection.verify.certificate import PARITY, Check
from clearhead.inspection.verify.measures import INT8_OUTPUTS, MEANS, TENSORS, TOKENS, Measure, Rows
from clearhead.kernels.attention import attention_backend
from clearhead.runtime.compile import has_compiler
from clearhead.runtime.converters.int8 import why_no_int8
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.int8.files import int8_file, read_int8
from clearhead.runtime.precision import FLOAT32, INT8

CPU = torch.device("cpu")
NOT_INSTALLED = "transformers is not installed"
_LENGTHS = (9, 4, 12, 1, 7, 160)
"""Lengths of the rows; 160 exceeds ModernBERT's windows (64 on each side) and T5's last distance bucket (128)."""
LEFT_PADDING, RIGHT_PADDING = 5, 7
"""Extra padding of the padding checks."""


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_check(name: str, compute: Callable[[], tuple[Any, Any]], *measures: Measure) -> list[Check]:
    """Run a check and return one result for each measure.

    Args:
        name: name of the check.
        compute: returns the result and the expected result. If it raises an error, the check fails with its text.
        measures: error measures of the two.

    Raises:
        OSError: the disk is full.
    """
    try:
        result, expected = compute()
        return [_check_error(name, measure, measure.error(result, expected)) for measure in measures]
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise
        reason = next(iter(str(error).splitlines()), "")
        note = f"{type(error).__name__}: {reason}"
        return [Check(name + measure.name, measure.measured, None, measure.bound, False, note) for measure in measures]


def skip_check(name: str, measure: Measure, reason: str) -> list[Check]:
    """Return the result of a check that cannot run."""
    return [Check(name, measure.measured, None, measure.bound, True, reason)]


class Checks:
    """Checks of a model; a subclass defines the vectors that are compared.

    Args:
        folder: folder of the checkpoint.
        model: its model in float32.
    """

    no_reference: str | None = None
    """Why transformers cannot compute the vectors of this model; None if it can."""
    bfloat16_measure: Measure
    """Error of bfloat16, in the vectors that users of the model get."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder, self.model = folder, model
        self.full_model = model  # with the head, if there is one
        self.rows: list[Tensor] = []

    def states(
        self, model: Any, rows: Sequence[Tensor], left: int = 0, right: int = 0, *, packed: bool = False
    ) -> Rows:
        """Return the vectors of rows of ids.

        Args:
            model: this model, or a copy of it in another form.
            rows: ids without padding.
            left, right: extra padding on each side.
            packed: concatenate the rows without padding.
        """
        raise NotImplementedError

    def reference_states(self) -> Rows:
        """Return the vectors that transformers computes."""
        raise NotImplementedError

    def save_and_load(self, folder: Path) -> nn.Module:
        """Save the model to a folder, and load it from there."""
        raise NotImplementedError

    def run(self, no_parity: str | None = None) -> Iterator[Check]:
        """Run all checks, and yield the results of each when it is done. Call it in inference mode.

        Args:
            no_parity: why the comparison with transformers is skipped; None to run it.
        """

        def pad(left: int = 0, right: int = 0) -> Callable[[], Rows]:
            return lambda: self.states(self.model, self.rows, left, right)

        yield from self.compare("padding on the right", pad(right=RIGHT_PADDING), TOKENS, MEANS)
        yield from self.compare("padding on the left", pad(left=LEFT_PADDING), TOKENS, MEANS)
        yield from self.unbatched()
        yield from self.compare("reversed batch", self._reversed, TOKENS, MEANS)
        yield from self.compare("packed = padded", lambda: self.states(self.model, self.rows, packed=True), TOKENS)
        yield from self.compare("fused = explicit attention", self._explicit, TOKENS)
        yield from self._prepacked()
        yield from self._compiled()
        yield from self.compare("bfloat16", self._bfloat16, self.bfloat16_measure)
        yield from self._int8()
        yield from self.extra()
        yield from run_check("saved and loaded", self._saved_and_loaded, TENSORS)
        if no_parity is None:
            yield from self.compare(PARITY, self.reference_states, TOKENS)
        else:
            yield from skip_check(PARITY, TOKENS, no_parity)

    def extra(self) -> list[Check]:
        """Run the checks of this type of model only."""
        return []

    def unbatched(self) -> list[Check]:
        """Check that each text alone has the same vectors as in a batch."""
        return self.compare("unbatched", lambda: [self.states(self.model, [row])[0] for row in self.rows], TOKENS)

    def compare(self, name: str, compute: Callable[[], Rows], *measures: Measure) -> list[Check]:
        """Check that vectors equal those of the model as loaded."""
        return run_check(name, lambda: (compute(), self._expected), *measures)

    @cached_property
    def _expected(self) -> Rows:
        return self.states(self.model, self.rows)

    def _reversed(self) -> Rows:
        return self.states(self.model, self.rows[::-1])[::-1]

    def _explicit(self) -> Rows:
        with attention_backend("explicit"):
            return self.states(self.model, self.rows)

    def _bfloat16(self) -> Rows:
        return self.states(inference_copy(self.model, "bfloat16", CPU), self.rows)

    def _int8(self) -> list[Check]:
        file = int8_file(self.folder)
        reason = why_no_int8(self.model, CPU)
        if file is None or reason is not None:
            return skip_check("int8", INT8_OUTPUTS, reason or "no 8-bit weights; `clearhead quantize` makes them")

        def quantized() -> Rows:
            precision = INT8.with_weights(read_int8(file, self.model))
            return self.states(inference_copy(self.model, precision, CPU), self.rows)

        return self.compare("int8", quantized, INT8_OUTPUTS)

    def _prepacked(self) -> list[Check]:
        name = "prepacked = plain weights"
        if FLOAT32.converter is None or not FLOAT32.converter.supports(CPU):
            return skip_check(name, TOKENS, "this version of torch has no prepacked operators")
        return self.compare(name, lambda: self.states(inference_copy(self.model, "float32", CPU), self.rows), TOKENS)

    def _compiled(self) -> list[Check]:
        name = "compiled = eager"
        if not has_compiler():
            return skip_check(name, TOKENS, "no C++ compiler found")

        def compiled() -> Rows:
            model = copy.deepcopy(self.model)
            model.compile(dynamic=True)
            return self.states(model, self.rows)

        return self.compare(name, compiled, TOKENS)

    def _saved_and_loaded(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with tempfile.TemporaryDirectory() as folder:
            return self.save_and_load(Path(folder)).state_dict(), self.full_model.state_dict()


def random_ids(vocab_size: int, special: set[int], max_len: int | None, length: int | None = None) -> list[Tensor]:
    """Return rows of random ids without special tokens, short enough for the extra padding.

    Args:
        vocab_size: size of the vocabulary.
        special: ids to exclude.
        max_len: longest sequence of the model; None for no limit.
        length: length of all rows; by default they have several lengths.
    """
    words = torch.tensor([token for token in range(vocab_size) if token not in special])
    longest = max(_LENGTHS) if max_len is None else max(1, max_len - max(LEFT_PADDING, RIGHT_PADDING))
    lengths = [min(length or size, longest) for size in _LENGTHS]
    return [words[torch.randint(len(words), (size,))] for size in lengths]


def padded(rows: Sequence[Tensor], pad: int, left: int = 0, right: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows as one tensor of ids (B, L), and which of them are real (B, L).

    Args:
        rows: ids of each row.
        pad: padding id.
        left, right: extra padding; all padding is on the left if `left` is not 0.
    """
    longest = max(len(row) for row in rows) + left + right
    ids, keep = torch.full((len(rows), longest), pad), torch.zeros(len(rows), longest, dtype=torch.bool)
    for index, row in enumerate(rows):
        start = longest - right - len(row) if left else 0
        ids[index, start : start + len(row)], keep[index, start : start + len(row)] = row, True
    return ids, keep


def _check_error(name: str, measure: Measure, error: float) -> Check:
    name += measure.name
    if not math.isfinite(error):
        return Check(name, measure.measured, None, measure.bound, False, "the error is NaN or infinite")
    return Check(name, measure.measured, error, measure.bound, error <= measure.bound)
