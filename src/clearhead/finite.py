"""Check that a model's outputs are finite, and name the text that they are not finite for."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN = 60
"""Characters of a text that an error message repeats."""


class NonFiniteError(ValueError):
    """A model produced NaN or infinity for a text.

    Args:
        what: the output, such as "vector".
        index: number of the text among the texts that were given, from 0.
        text: the text.
        where: the file and line of the text; "" for a message without a place, None for the number of the text.
        model: name or folder of the model.
        precision: dtype of the model's layers.

    >>> str(NonFiniteError("vector", 3, text="the storm", model="my-model"))[:72]
    "text 3: the model my-model produced NaN or infinity in the vector of 'th"
    """

    def __init__(
        self,
        what: str,
        index: int,
        text: str | None = None,
        where: str | None = None,
        model: str = "",
        precision: str = "float32",
    ) -> None:
        super().__init__(what, index, text, where, model, precision)  # what pickle calls the class with
        self.what, self.index, self.text, self.where = what, index, text, where
        self.model, self.precision = model, precision

    def __str__(self) -> str:
        place = f"text {self.index}" if self.where is None else self.where
        shown = "" if self.text is None else f" of {_shortened(self.text)}"
        advice = (
            "Check the weights, or use another copy of the model."
            if self.precision == "float32"
            else "Try float32 (--precision float32)."
        )
        return (
            f"{place}{': ' if place else ''}the model {self.model} produced NaN or infinity in the {self.what}{shown}: "
            f"its weights are damaged, or its values exceed the range of {self.precision}. {advice}"
        )

    def changed(self, **parts: Any) -> "NonFiniteError":
        """Return the same error with other parts, named as the arguments of the class."""
        names = ("what", "index", "text", "where", "model", "precision")
        return NonFiniteError(**{name: getattr(self, name) for name in names} | parts)


def check_finite(values: NDArray[Any], what: str, indices: Sequence[int]) -> None:
    """Raise an error for the first row that holds NaN or infinity.

    Args:
        values: an array (N, ...), a row for each text.
        what: the output, such as "vector".
        indices: number of the text of each row.

    Raises:
        NonFiniteError: a row is not finite.

    >>> check_finite(np.zeros((2, 3)), "vector", [0, 1])
    """
    if not np.isfinite(values).all():
        rows = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        raise NonFiniteError(what, indices[int(rows.argmin())])


def check_scores(scores: Sequence[float], what: str, indices: Sequence[int]) -> None:
    """Raise an error for the first score that is NaN; −∞ is the score of a forbidden token.

    Args:
        scores: one for each text, on the CPU.
        what, indices: as in `check_finite`.

    Raises:
        NonFiniteError: a score is NaN.

    >>> check_scores([-math.inf, -0.5], "log-probabilities", [0, 1])
    """
    for score, index in zip(scores, indices, strict=True):
        if math.isnan(score):
            raise NonFiniteError(what, index)


@contextlib.contextmanager
def naming(
    *,
    index: Callable[[int], int] | None = None,
    text: Callable[[int], str] | None = None,
    where: Callable[[int], str] | None = None,
    **parts: str,
) -> Iterator[None]:
    """Add to a `NonFiniteError` what the caller knows about the text.

    Args:
        index, text, where: functions of the error's index that return the caller's index, the text and its place.
        parts: the model and the precision, as in `NonFiniteError`.

    >>> with naming(text=["the storm"].__getitem__, model="my-model"):
    ...     check_scores([-0.5], "log-probabilities", [0])
    """
    try:
        yield
    except NonFiniteError as error:
        known = {"index": index, "text": text, "where": where}
        found = {name: function(error.index) for name, function in known.items() if function is not None}
        raise error.changed(**found, **parts) from None


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"
