"""Print the steps of a forward pass in a terminal of any width."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from clearhead.inspection.trace.records import Step
    from clearhead.inspection.trace.seq2seq import ForwardPass

LEGEND = (
    "B batch, L length, Lq queries, Lk keys, D d_model, H heads, d_k and d_v width of a head, "
    "F hidden width of the feed-forward"
)
# printed if a step has that dimension
OPTIONAL_LEGEND = {
    "V": "V vocabulary",
    "n·Lq": "n targets of one source, with their queries in one row",
}


def print_steps(console: "Console", title: str, passes: "Sequence[ForwardPass]", parameters: int) -> None:
    """Print each step on one line, or on two lines if the terminal is narrow.

    Steps are grouped by pass and by layer.

    Args:
        console: console to print to.
        title: description of the run.
        passes: the passes of one model.
        parameters: number of parameters of the model.
    """
    from rich.rule import Rule
    from rich.text import Text

    console.print(Text(title, style="bold"))
    steps = [step for part in passes for step in part.trace.steps]
    cells = [_cells(number, step) for number, step in enumerate(steps, start=1)]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(len(_STYLES))]
    rows = iter(cells)
    for part in passes:
        if part.name:
            heading = Text(part.name, style="bold").append(f"  {part.about}".rstrip(), "not bold")
            console.print(Rule(heading, align="left", characters="━"))
        for group, members in groupby(part.trace.steps, key=lambda step: _group(step.path)):
            console.print(Rule(Text(group, style="bold cyan"), align="left", style="dim"))
            for step, row in zip(members, rows, strict=False):
                _print_step(console, step, row, widths)
    types = ", ".join(sorted({step.dtype for step in steps}))
    dimensions = {name for step in steps for name, _ in step.shape}
    legend = ", ".join([LEGEND, *(text for name, text in OPTIONAL_LEGEND.items() if name in dimensions)])
    console.print(Rule(style="dim"))
    console.print(Text(f"{len(steps)} steps, {parameters:,} parameters, {types}. {legend}.", style="dim"))


def _print_step(console: "Console", step: "Step", row: Sequence[str], widths: Sequence[int]) -> None:
    from rich.text import Text

    one_line = sum(widths) + 2 * len(widths) <= console.width
    first = Text(no_wrap=True, overflow="ellipsis")
    for column in range(len(_STYLES)) if one_line else range(4):
        padded = row[column].rjust(widths[column]) if column in _RIGHT else row[column].ljust(widths[column])
        first.append(padded + "  ", _STYLES[column])
    first.rstrip()
    console.print(first)
    if not one_line:
        _print_below(console, step, row)


# number, operation, path within its group, shape, parameters, values, equation
_STYLES = ("dim", "bold", "cyan", "green", "magenta", "yellow", "")
_RIGHT = (0, 4)


def _cells(number: int, step: "Step") -> tuple[str, ...]:
    statistics = step.values
    values = ""
    if statistics is not None:
        low, high = statistics.min, statistics.max
        values = f"{statistics.mean:+.3f} ± {statistics.std:.3f} in [{low:+.3f}, {high:+.3f}]"
    inside = step.path.removeprefix(_group(step.path)).removeprefix(".")
    count = f"{step.parameters:,}" if step.parameters else ""
    return (str(number), step.operation, inside, step.named_shape, count, values, step.equation)


def _print_below(console: "Console", step: "Step", row: Sequence[str]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    below = Text(row[6])
    if step.parameters:
        below.append(f"   {row[4]} parameters", _STYLES[4])
    if row[5]:
        below.append(f"\n{row[5]}", _STYLES[5])
    console.print(Padding(below, (0, 0, 0, 6)))


def _group(path: str) -> str:
    """Return the path of the layer or the embedding of a step."""
    parts = path.split(".")
    numbered = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0] + 1]) if numbered else parts[0]
