"""Names of the outputs of a head."""

import re
from collections import Counter
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_labels(labels: Sequence[str]) -> None:
    """Check the names of the outputs of a head.

    Raises:
        ValueError: no labels, equal labels, or a label with line breaks or other control characters.

    >>> from clearhead.models.labels import check_labels
    >>> check_labels(["good", "bad"])
    """
    if not labels:
        raise ValueError("a head needs one label or more; got none")
    for label, count in Counter(labels).items():
        if count > 1:
            raise ValueError(f"{count} outputs have the label {label!r:.80}; expected different labels")
        if _CONTROL.search(label):
            raise ValueError(f"the label {label!r:.80} has a line break or another control character")
