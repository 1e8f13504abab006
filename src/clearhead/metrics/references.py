"""What scores of texts against references have in common: line n of one belongs to line n of the other."""

import importlib.util
from collections.abc import Sequence

from clearhead.data.documents import References


def require_package(package: str) -> None:
    """Whether a package that scores is there.

    Raises:
        ValueError: it is not; the message says what brings it.

    >>> require_package("numpy")
    """
    if importlib.util.find_spec(package) is None:
        raise ValueError(f'evaluating needs {package}: pip install "clearhead[evaluate]"')


def check_parallel(outputs: Sequence[str], references: References) -> None:
    """Whether each output has a reference.

    Raises:
        ValueError: no outputs, no lists of references, one that is longer or shorter than the outputs, a single string
            where a list is wanted, or an output without a reference.

    >>> check_parallel(["a bridge"], [["the bridge"]])
    """
    if isinstance(outputs, str) or isinstance(references, str) or any(isinstance(some, str) for some in references):
        raise ValueError("a list of texts, and lists of references each as long, are wanted; got a single string")
    if not outputs:
        raise ValueError("there are no texts to score")
    if not references:
        raise ValueError("there are no references to score against; give one list of them or more")
    for number, some in enumerate(references):
        if len(some) != len(outputs):
            raise ValueError(
                f"{len(outputs)} texts but {len(some)} references in list {number}; "
                "each list has one for each text, which may be None"
            )
    for number, some in enumerate(zip(*references, strict=True)):
        if all(reference is None for reference in some):
            raise ValueError(f"text {number} has no reference; one or more are wanted")
