"""Print the steps of a forward pass as a table that fits the terminal."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from clearhead.inspection.trace.records import Step
    from clearhead.inspection.trace.seq2seq import ForwardPass

LEGEND = (
    "B batch, L length, Lq queries, Lk keys, D d_model, H heads, d_k and d_v width of a head, "
    "F width inside the feed-forward network"
)
# explained only if a step has the dimension
EXTRA_LEGEND = {
    "V": "V vocabulary",
    "n·Lq": "n targets of one source, whose queries are joined in one row",
}


def print_steps(console: "Console", title: str, passes: "Sequence[ForwardPass]", parameters: int) -> None:
    """Print each step on one line, or with its equation on a second line if the terminal is narrow.

    Steps are grouped by pass, and within a pass by layer.

    Args:
        console: console to print to.
        title: heading, such as the name of the model and the text.
        passes: forward passes of one model.
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
        for group, members in groupby(part.trace.steps, key=lambda step: group_path(step.path)):
            console.print(Rule(Text(group, style="bold cyan"), align="left", style="dim"))
            for step, row in zip(members, rows, strict=False):
                _print_step(console, step, row, widths)
    types = ", ".join(sorted({step.dtype for step in steps}))
    dimensions = {name for step in steps for name, _ in step.shape}
    legend = ", ".join([LEGEND, *(text for name, text in EXTRA_LEGEND.items() if name in dimensions)])
    console.print(Rule(style="dim"))
    console.print(
        Text(f"{len(steps)} steps in {types}. The model has {parameters:,} parameters. {legend}.", style="dim")
    )


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
    stats = step.values
    values = "" if stats is None else f"{stats.mean:+.3f} ± {stats.std:.3f} in [{stats.min:+.3f}, {stats.max:+.3f}]"
    inside = step.path.removeprefix(group_path(step.path)).removeprefix(".")
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


def group_path(path: str) -> str:
    """Return the path of the layer of a step, or of the embedding."""
    parts = path.split(".")
    numbered = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0] + 1]) if numbered else parts[0]
