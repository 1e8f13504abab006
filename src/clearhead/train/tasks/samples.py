"""Lines that show the predictions for a few held-out examples."""

from collections.abc import Sequence
from typing import TypeVar

NUM_SAMPLES = 3

_MAX_CHARS = 100

Item = TypeVar("Item")


def spread(items: Sequence[Item], count: int = NUM_SAMPLES) -> list[Item]:
    """Return a few items at equal distances, because files are often sorted by label.

    >>> spread(range(9)), spread("ab")
    ([0, 3, 6], ['a', 'b'])
    """
    return [items[len(items) * number // count] for number in range(count)] if len(items) > count else list(items)


def shortened(text: str) -> str:
    """Return a text in one line of limited length.

    >>> shortened("It\\nrained.")
    'It rained.'
    """
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 2]} …"


def output_lines(source: str, output: str, expected: str) -> list[str]:
    """Return the lines of a generated text.

    >>> output_lines("It rained.", "Es regnete.", "Es regnete.")
    ['  source    It rained.', '  output    Es regnete. (as expected)']
    """
    if output == expected:
        return [f"  source    {shortened(source)}", f"  output    {shortened(output)} (as expected)"]
    named = {"source": source, "output": output, "expected": expected}
    return [f"  {name:8}  {shortened(text)}".rstrip() for name, text in named.items()]


def label_line(text: str, predicted: str, expected: str) -> str:
    """Return the line of a short prediction, such as a label.

    >>> label_line("What a film!", "bad", "good")
    '  predicted bad, expected good: What a film!'
    """
    return f"  predicted {shortened(predicted)}, expected {shortened(expected)}: {shortened(text)}"
