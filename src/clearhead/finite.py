"""Check that the outputs of a model are finite, and report the text with NaN or infinity."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_CHARACTERS = 60
"""Maximum number of characters of a text in an error message."""


class NonFiniteError(ValueError):
    """A model produced NaN or infinity for a text.

    Args:
        output: name of the output, such as "vector".
        index: index of the text in the input.
        text: the text.
        location: file and line of the text; "" to omit it from the message, None for the index of the text.
        model: name or folder of the model.
        precision: precision of the layers.

    >>> str(NonFiniteError("vector", 3, text="the storm", model="my-model"))[:72]
    "text 3: the model my-model produced NaN or infinity in the vector of 'th"
    """

    def __init__(
        self,
        output: str,
        index: int,
        text: str | None = None,
        location: str | None = None,
        model: str = "",
        precision: str = "float32",
    ) -> None:
        super().__init__(output, index, text, location, model, precision)  # pickle calls the class with these
        self.output, self.index, self.text, self.location = output, index, text, location
        self.model, self.precision = model, precision

    def __str__(self) -> str:
        location = f"text {self.index}" if self.location is None else self.location
        text = "" if self.text is None else f" of {_shorten(self.text)}"
        advice = (
            "Check the weights, or use another copy of the model."
            if self.precision == "float32"
            else "Try float32 (--precision float32)."
        )
        return (
            f"{location}{': ' if location else ''}the model {self.model} produced NaN or infinity in the {self.output}"
            f"{text}: its weights are damaged, or its values exceed the range of {self.precision}. {advice}"
        )

    def replace(self, **arguments: Any) -> "NonFiniteError":
        """Return a copy of the error with some of its arguments replaced."""
        names = ("output", "index", "text", "location", "model", "precision")
        return NonFiniteError(**{name: getattr(self, name) for name in names} | arguments)


def check_finite(values: NDArray[Any], output: str, indices: Sequence[int]) -> None:
    """Raise an error for the first row with NaN or infinity.

    Args:
        values: array (N, ...) with one row per text.
        output: name of the output, such as "vector".
        indices: index of the text of each row.

    Raises:
        NonFiniteError: a row is not finite.

    >>> check_finite(np.zeros((2, 3)), "vector", [0, 1])
    """
    if not np.isfinite(values).all():
        rows = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        raise NonFiniteError(output, indices[int(rows.argmin())])


def check_scores(scores: Sequence[float], output: str, indices: Sequence[int]) -> None:
    """Raise an error for the first score that is NaN. −∞ is allowed: forbidden tokens have it.

    Args:
        scores: one score per text.
        output, indices: as in `check_finite`.

    Raises:
        NonFiniteError: a score is NaN.

    >>> check_scores([-math.inf, -0.5], "log-probabilities", [0, 1])
    """
    for score, index in zip(scores, indices, strict=True):
        if math.isnan(score):
            raise NonFiniteError(output, index)


@contextlib.contextmanager
def error_context(
    *,
    index: Callable[[int], int] | None = None,
    text: Callable[[int], str] | None = None,
    location: Callable[[int], str] | None = None,
    **arguments: str,
) -> Iterator[None]:
    """Add the text, its location and the model to a `NonFiniteError` that the block raises.

    Args:
        index, text, location: functions that map the index of the error to the index, text and location of the caller.
        arguments: model and precision, as in `NonFiniteError`.

    >>> with error_context(text=["the storm"].__getitem__, model="my-model"):
    ...     check_scores([-0.5], "log-probabilities", [0])
    """
    try:
        yield
    except NonFiniteError as error:
        functions = {"index": index, "text": text, "location": location}
        values = {name: function(error.index) for name, function in functions.items() if function is not None}
        raise error.replace(**values, **arguments) from None


def _shorten(text: str) -> str:
    return repr(text) if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]!r}…"
