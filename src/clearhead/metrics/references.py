"""Checks of outputs and references, shared by the metrics that compare them line by line."""

import importlib.util
from collections.abc import Sequence

from clearhead.data.documents import References


def require_package(package: str) -> None:
    """Check that a package for evaluation is installed.

    Raises:
        ValueError: it is not installed; the message gives the command that installs it.

    >>> require_package("numpy")
    """
    if importlib.util.find_spec(package) is None:
        raise ValueError(f'evaluation requires {package}: pip install "clearhead[evaluate]"')


def check_parallel(outputs: Sequence[str], references: References) -> None:
    """Check that each output has a reference.

    Raises:
        ValueError: there are no outputs or no references, a list of references has another length, an argument is a
            string instead of a list, or an output has no reference.

    >>> check_parallel(["a bridge"], [["the bridge"]])
    """
    if isinstance(outputs, str) or isinstance(references, str) or any(isinstance(column, str) for column in references):
        raise ValueError("expected a list of texts and lists of references of the same length; got a single string")
    if not outputs:
        raise ValueError("there are no texts to score")
    if not references:
        raise ValueError("there are no references; pass at least one list")
    for number, column in enumerate(references):
        if len(column) != len(outputs):
            raise ValueError(
                f"{len(outputs)} texts but {len(column)} references in list {number}; "
                "each list needs one reference per text, which may be None"
            )
    for number, row in enumerate(zip(*references, strict=True)):
        if all(reference is None for reference in row):
            raise ValueError(f"text {number} has no reference; expected at least one")
